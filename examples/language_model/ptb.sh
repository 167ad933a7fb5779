#!/usr/bin/env bash
# RUM beside LSTM on character-level Penn Treebank, at equal parameters and equal time.
#   examples/language_model/ptb.sh PTB_FOLDER [MINUTES]
# PTB_FOLDER holds train.txt, valid.txt and test.txt (Mikolov's version). Runs that are finished are
# skipped, a run that was stopped goes on. MINUTES of training for each model (default 10).
set -euo pipefail
ptb=${1:?folder with train.txt, valid.txt, test.txt}
minutes=${2:-10}
cd "$(dirname "$0")/../.."
data=data-bin/ptb
user_dir=$(fairseq-rum user-dir)
export PYTHONWARNINGS=ignore

[[ -d $data ]] || fairseq-rum prepare chars --unit bytes --destdir "$data" \
    --trainpref "$ptb/train.txt" --validpref "$ptb/valid.txt" --testpref "$ptb/test.txt"

run() { # name, then the options of the model
    local dir=checkpoints/ptb/$1
    shift
    mkdir -p "$dir"
    if [[ ! -e $dir/done ]]; then
        fairseq-train "$data" --user-dir "$user_dir" \
            --task stateful_language_modeling --tokens-per-sample 150 --batch-size 128 \
            --arch rum_lm --decoder-embed-dim 128 "$@" \
            --criterion bits_per_token --sentence-avg \
            --optimizer adam --lr 0.002 --clip-norm 1.0 --seed 1 --cpu --num-workers 0 \
            --stop-time-hours "$(python -c "print($minutes / 60)")" \
            --validate-interval-updates 100 --no-epoch-checkpoints --save-interval-updates 500 \
            --keep-interval-updates 1 --best-checkpoint-metric bpc \
            --log-format json --log-interval 50 --log-file "$dir/log.json" --save-dir "$dir"
        touch "$dir/done"
    fi
    fairseq-eval-lm "$data" --user-dir "$user_dir" --task stateful_language_modeling \
        --path "$dir/checkpoint_last.pt" --gen-subset test --batch-size 1 --cpu --no-progress-bar
}

run rum_604 --rnn-unit rum --decoder-hidden-size 604 --rum-eta 1
run lstm_432 --rnn-unit lstm --decoder-hidden-size 432
