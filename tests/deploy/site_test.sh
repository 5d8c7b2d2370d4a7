#!/bin/bash
# deploy/site makes a page for each thing that it should have.
set -euo pipefail
ROOT=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd)
INTO=$(mktemp -d)
trap 'rm -rf "$INTO"' EXIT
"$ROOT/deploy/site" --into "$INTO"
for page in index.html start/index.html troubleshooting/index.html changelog/index.html decisions/index.html; do
  [[ -s $INTO/$page ]] || { echo "no $page" >&2; exit 1; }
done
# From docstrings and from headers.
grep -q 'device_budget' "$INTO/reference/python/index.html"
grep -q 'ravenstore_begin_get_batch' "$INTO/reference/c/index.html"
grep -q 'limits' "$INTO/reference/configuration/index.html"
