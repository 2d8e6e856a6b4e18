#!/bin/sh
# Resolve requirements/*.in into lock files: for every platform and Python ≥ 3.11, with
# hashes, without the address of any index. Needs uv (`pip install uv`).
set -eu
cd "$(dirname "$0")/.."
command -v uv >/dev/null 2>&1 || { echo "Locking needs uv: run \`pip install uv\`." >&2; exit 1; }
for name in runtime dev hudi moto unity; do
    uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
        --no-annotate --no-emit-index-url "requirements/$name.in" -o "requirements/$name.lock"
done
# See requirements/part-copy.in.
uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-deps \
    --no-annotate --no-emit-index-url requirements/part-copy.in -o requirements/part-copy.lock
