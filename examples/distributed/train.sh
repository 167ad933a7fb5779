#!/usr/bin/env bash
# fairseq-train in several data-parallel processes of this machine: train.sh DATA OPTION ...
# PROCESSES=2 of them; DEVICE=cpu, or gpu for one GPU each. What a process prints as it dies is
# shown, and it takes the others with it.
set -euo pipefail

processes=${PROCESSES:-2}
case ${DEVICE:-cpu} in
    cpu) device=(--cpu --distributed-backend gloo) ;;
    gpu) device=(--distributed-backend nccl) ;;
    *) echo "train.sh: DEVICE=$DEVICE: cpu or gpu" >&2; exit 2 ;;
esac
[[ $processes =~ ^[1-9][0-9]*$ ]] ||
    { echo "train.sh: PROCESSES=$processes: a number of at least 1" >&2; exit 2; }

# torchrun sets RANK and LOCAL_RANK, which each process has to read for itself.
# shellcheck disable=SC2016
exec torchrun --standalone --nproc_per_node "$processes" --no-python bash -c '
    exec fairseq-train "$@" --distributed-rank "$RANK" --device-id "$LOCAL_RANK"
' train.sh "$@" "${device[@]}" --distributed-world-size "$processes" \
    --distributed-init-method env:// --distributed-no-spawn --ddp-backend legacy_ddp \
    --load-checkpoint-on-all-dp-ranks
