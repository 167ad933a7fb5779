#!/usr/bin/env bash
# All runs on summarization, or those that the options name: see run.sh --help.
set -euo pipefail
exec "${PYTHON:-python}" "$(dirname "$0")/runs.py" "$@"
