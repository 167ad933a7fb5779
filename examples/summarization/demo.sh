#!/usr/bin/env bash
# Summaries without a download: the docstrings of installed packages and their first lines. Prepare,
# train for DEMO_MINUTES (4), generate, score. About six minutes on two cores.
set -euo pipefail
cd "$(dirname "$0")/../.."

out=demo/summarization
export PYTHONWARNINGS=ignore # what fairseq's dependencies will change one day
user_dir=$(fairseq-rum user-dir)
rm -rf "$out"
mkdir -p "$out"

echo '== 1. docstrings of the standard library, numpy and scipy: body -> first line'
fairseq-rum prepare docstrings --packages python numpy scipy --lowercase --min-count 3 \
    --source-length 100 --target-length 30 --workers 2 --destdir "$out/data" \
    >"$out/prepare.log" 2>&1 || { cat "$out/prepare.log"; exit 1; }
grep -E '^(train|valid|test|vocabulary):' "$out/prepare.log" | grep -v ' \.\.\.$'

echo '== 2. fairseq-train: pointer-generator, LSTM encoder and RUM decoder'
fairseq-train "$out/data" --user-dir "$user_dir" --task rum_summarization \
    --arch pointer_gen_rum --embed-dim 64 --encoder-hidden-size 96 --decoder-hidden-size 128 \
    --criterion pointer_coverage_loss --optimizer adam --lr 0.003 --clip-norm 2.0 \
    --batch-size 16 --stop-time-hours "$(python -c "print(${DEMO_MINUTES:-4} / 60)")" \
    --no-epoch-checkpoints --save-dir "$out/checkpoints" --num-workers 0 --cpu --seed 1 \
    --log-format json --log-interval 50 2>&1 | tee "$out/train.log" |
    sed -unE 's/^.*valid \| \{"epoch": ([0-9]+).*"valid_loss": "([0-9.]+)".*"valid_copied": "([0-9.]+)".*"valid_num_updates": "([0-9]+)".*$/epoch \1  valid loss \2  copied \3%  updates \4/p'

echo '== 3. fairseq-generate on the test split, ROUGE at its end'
fairseq-generate "$out/data" --user-dir "$user_dir" --task rum_summarization \
    --path "$out/checkpoints/checkpoint_best.pt" --gen-subset test --beam 4 --max-len-b 30 \
    --no-repeat-ngram-size 3 --batch-size 16 --scoring rouge --results-path "$out" --cpu \
    --num-workers 0 \
    >"$out/generate.log" 2>&1 || { cat "$out/generate.log"; exit 1; }
tail -n 1 "$out/generate-test.txt"

echo '== 4. the baseline: the first sentence of each body'
fairseq-rum score --lead 1 --src "$out/data/test.source.txt" \
    --ref "$out/data/test.target.txt" | sed -n 2,6p

echo '== 5. five of the summaries (T: the real one, D: the model'"'"'s)'
for number in 3 23 43 63 83; do
    grep -E "^[TD]-$number"$'\t' "$out/generate-test.txt" | sed -E 's/^D-[0-9]+\t[^\t]*\t/    D | /; s/^T-[0-9]+\t/    T | /'
done
