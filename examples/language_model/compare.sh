#!/usr/bin/env bash
# Language models of one size for the same minutes, and the short runs beside them.
#   examples/language_model/compare.sh DATA MINUTES [RUN ...]     see compare.sh --help
set -euo pipefail
exec "${PYTHON:-python}" "$(dirname "$0")/compare.py" "$@"
