#!/usr/bin/env bash
# Questions about made-up stories, without a download: prepare, train, test, ask. About two minutes
# on one core. DEMO_EPOCHS changes the training.
set -euo pipefail
cd "$(dirname "$0")/../.."

out=demo/babi
export PYTHONWARNINGS=ignore # what fairseq's dependencies will change one day
user_dir=$(fairseq-rum user-dir)
rm -rf "$out"
mkdir -p "$out"

echo '== 1. stories: where is everyone?'
fairseq-rum prepare babi-sim --tasks 1 --train-questions 5000 --destdir "$out/data" \
    >"$out/prepare.log" 2>&1 || { cat "$out/prepare.log"; exit 1; }
grep -E '^qa' "$out/prepare.log"
head -n 6 "$out"/data/text/qa1_*_test.txt | sed 's/^/    | /'

echo '== 2. fairseq-train: RUM with attention to the sentences'
fairseq-train "$out/data/qa1" --user-dir "$user_dir" --task babi_qa \
    --arch rum_qa --rnn-unit rum --rum-lambda 1 --attention dot \
    --criterion answer_accuracy --optimizer adam --lr 0.001 --batch-size 32 \
    --best-checkpoint-metric accuracy --maximize-best-checkpoint-metric --patience 5 \
    --max-epoch "${DEMO_EPOCHS:-15}" --no-epoch-checkpoints --save-dir "$out/checkpoints" \
    --num-workers 0 --cpu --seed 1 --log-format json 2>&1 | tee "$out/train.log" |
    sed -unE 's/^.*valid \| \{"epoch": ([0-9]+).*"valid_accuracy": "([0-9.]+)".*$/epoch \1  valid accuracy \2%/p'

echo '== 3. fairseq-validate on the test split'
fairseq-validate "$out/data/qa1" --user-dir "$user_dir" --task babi_qa --valid-subset test \
    --path "$out/checkpoints/checkpoint_best.pt" --batch-size 100 --num-workers 0 --cpu \
    --log-format json 2>&1 | grep -oE '"test_accuracy": "[0-9.]+"'

echo '== 4. ask'
story='Alice went to the cellar.
Boris ran to the library.
Alice walked to the orchard.
Where is Alice?
Where is Boris?'
sed 's/^/    | /' <<<"$story"
fairseq-rum ask --checkpoint "$out/checkpoints/checkpoint_best.pt" <<<"$story" 2>/dev/null
