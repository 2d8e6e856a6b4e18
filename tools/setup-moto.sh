#!/bin/sh
# Set up the stand-in for AWS Glue that tests use: moto's server, in an environment of its own below
# ${TANDEM_CACHE:-$HOME/.cache/tandem}/moto.
#
# Does nothing if the pinned versions are there. Prints the server's path.
set -eu
cd "$(dirname "$0")/.."

cache=${TANDEM_CACHE:-$HOME/.cache/tandem}
home="$cache/moto"
pins=$(cksum <requirements/moto.lock)

is_there() { [ "$(cat "$home/.pinned" 2>/dev/null)" = "$pins" ]; }

quietly() {
    if "$@" >"$log" 2>&1; then return 0; fi
    tail -n 15 "$log" >&2
    echo "Setting up moto failed (see above): run tools/setup-moto.sh again." >&2
    exit 1
}

# alone: from here on no other such script works on this cache, if the system has flock.
alone() {
    mkdir -p "$cache"
    if command -v flock >/dev/null 2>&1; then
        exec 9>"$cache/moto.lock"
        flock 9
    fi
}

if ! is_there; then
    alone
fi
if ! is_there; then
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    rm -rf "$home"
    quietly "$(tools/find-python.sh)" -m venv "$home"
    quietly "$home/bin/python" -m pip install --disable-pip-version-check --require-hashes \
        --no-deps -r requirements/moto.lock
    echo "$pins" >"$home/.pinned"
fi
echo "$home/bin/moto_server"
