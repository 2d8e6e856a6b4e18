#!/bin/sh
# Print a Python that Tandem runs on (3.11 or later, able to make environments), or say in one
# sentence what to do. PYTHON, if set, is the only one that is tried.
set -eu

usable() {
    command -v "$1" >/dev/null 2>&1 &&
        "$1" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

if [ -n "${PYTHON:-}" ]; then
    if usable "$PYTHON"; then echo "$PYTHON"; exit 0; fi
    echo "PYTHON=$PYTHON is not a Python 3.11 or later with venv: run \`unset PYTHON\`." >&2
    exit 1
fi
# The versions that the lock files were tested with come first.
for candidate in python3.11 python3.12 python3.13 python3 python3.14; do
    if usable "$candidate"; then echo "$candidate"; exit 0; fi
done

if command -v apt-get >/dev/null 2>&1; then
    fix="sudo apt-get install -y python3 python3-venv"
elif command -v dnf >/dev/null 2>&1; then
    fix="sudo dnf install -y python3.11"
elif command -v brew >/dev/null 2>&1; then
    fix="brew install python@3.12"
else
    fix="export PYTHON=<a Python 3.11 or later>"
fi
echo "Tandem needs Python 3.11 or later with venv, and there is none: run \`$fix\`." >&2
exit 1
