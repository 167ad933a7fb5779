#!/usr/bin/env bash
# Correctness and speed of RUM's kernels on one CUDA GPU, in under five minutes.
# Writes benchmarks/GPU.md. Without a GPU it says so and exits with status 1.
set -euo pipefail
cd "$(dirname "$0")/.."
exec "${PYTHON:-python3}" -m benchmarks.gpu "$@"
