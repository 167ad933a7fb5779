#!/usr/bin/env bash
# A language model of a text that every Python carries: prepare, preprocess, train, evaluate, sample.
# About three minutes on two cores. DEMO_UPDATES shortens the training.
set -euo pipefail
cd "$(dirname "$0")/.."

out=demo/language_model
export PYTHONWARNINGS=ignore # what fairseq's dependencies will change one day
user_dir=$(fairseq-rum user-dir)
rm -rf "$out"
mkdir -p "$out"

echo '== 1. a text: the topics of Python'"'"'s help()'
python - "$out" <<'PYTHON'
import sys
from pathlib import Path

from pydoc_data.topics import topics

text = "\n".join(topics[name] for name in sorted(topics))
first, second = int(len(text) * 0.9), int(len(text) * 0.95)
for split, part in (("train", text[:first]), ("valid", text[first:second]), ("test", text[second:])):
    Path(sys.argv[1], split + ".txt").write_text(part, encoding="utf-8")
print(f"{len(text):,} characters")
PYTHON

echo '== 2. characters -> fairseq-preprocess'
fairseq-rum prepare chars --trainpref "$out/train.txt" --validpref "$out/valid.txt" \
    --testpref "$out/test.txt" --destdir "$out/data-bin" >"$out/prepare.log" 2>&1 ||
    { cat "$out/prepare.log"; exit 1; }
grep -E '^(train|valid|test|vocabulary):' "$out/prepare.log"

echo '== 3. fairseq-train: watch bpc, the bits per character, fall'
fairseq-train "$out/data-bin" --user-dir "$user_dir" \
    --task stateful_language_modeling --tokens-per-sample 100 --batch-size 32 \
    --arch rum_lm --decoder-embed-dim 64 --decoder-hidden-size 384 --rum-activation tanh \
    --criterion bits_per_token --sentence-avg \
    --optimizer adam --lr 0.005 --clip-norm 5 --lr-scheduler cosine --warmup-updates 50 \
    --max-update "${DEMO_UPDATES:-1300}" --no-epoch-checkpoints \
    --best-checkpoint-metric bpc --save-dir "$out/checkpoints" --log-format tqdm --log-interval 10 \
    --num-workers 0 --cpu --seed 1 | tee "$out/train.log" |
    sed -unE 's/^.*(num. shared model params: [0-9,]+).*$/\1/p; s/^.*(unit .*: backend .* takes .*)$/\1/p
              s/^.*(epoch [0-9]+).*valid on.*(bpc [0-9.]+).*(num_updates [0-9]+).*$/\1  valid \2  \3/p'

echo '== 4. fairseq-eval-lm on the test split'
fairseq-eval-lm "$out/data-bin" --user-dir "$user_dir" --task stateful_language_modeling \
    --path "$out/checkpoints/checkpoint_best.pt" --gen-subset test --batch-size 1 --cpu \
    --no-progress-bar 2>&1 | grep -oE '(Evaluated|Loss \(base 2\)).*' |
    sed 's/Loss (base 2)/bits per character/'

echo '== 5. what it writes: fairseq-interactive, sampling'
printf '%s\n' 'The ' 'A class ' 'If the ' 'return ' |
    fairseq-interactive "$out/data-bin" --user-dir "$user_dir" --task stateful_language_modeling \
        --path "$out/checkpoints/checkpoint_best.pt" --cpu --beam 1 --nbest 1 --sampling \
        --sampling-topk 20 --temperature 0.7 --max-len-b 100 --buffer-size 4 --seed 1 \
        2>&1 | grep -E '^D-' | cut -f3- | sed 's/^/    | /'
