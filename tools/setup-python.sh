#!/bin/sh
# Make or update the environment .venv from the lock file. pip's own configuration (index,
# proxy, certificates) is respected; every installed package is checked against a hash.
set -eu
cd "$(dirname "$0")/.."

python=$(tools/find-python.sh)
if ! .venv/bin/python -c '' >/dev/null 2>&1; then
    echo "Making .venv with $python." >&2
    rm -rf .venv
    "$python" -m venv .venv
fi
export PIP_DISABLE_PIP_VERSION_CHECK=1
echo "Installing the locked dependencies (the first time takes a few minutes)." >&2
log=$(mktemp)
trap 'rm -f "$log"' EXIT
quietly() {
    if "$@" >"$log" 2>&1; then return 0; fi
    tail -n 15 "$log" >&2
    echo "Installing the dependencies failed (see above): check pip's index with \`.venv/bin/pip config list\`." >&2
    exit 1
}
quietly .venv/bin/pip install --require-hashes --no-deps -r requirements/dev.lock \
    -r requirements/part-copy.lock
quietly .venv/bin/pip install --no-deps --no-build-isolation -e .
touch .venv/.installed
