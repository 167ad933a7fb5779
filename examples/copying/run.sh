#!/usr/bin/env bash
# All runs on the copying task, or those that the options name: see run.sh --help.
set -euo pipefail
exec "${PYTHON:-python}" "$(dirname "$0")/../memory_runs.py" copying "$@"
