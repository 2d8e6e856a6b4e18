#!/bin/sh
# Build or install the servers that stand in for Google Cloud Storage and Azure Blob Storage into
# ${TANDEM_CACHE:-$HOME/.cache/tandem}: fake-gcs-server (needs nothing) and Azurite (needs npm).
#
# Does nothing if the pinned versions exist. Prints both programs' paths.
set -eu
. "$(dirname "$0")/go.sh"

gcs="$cache/bin/fake-gcs-server"
azurite="$cache/azurite/node_modules/.bin/azurite-blob"
azurite_pins=$(cksum < "$tools/azurite/package-lock.json")

has_azurite() {
    [ -x "$azurite" ] && [ "$(cat "$cache/azurite/pinned" 2>/dev/null)" = "$azurite_pins" ]
}

if ! is_built fake-gcs-server "$gcs" || ! has_azurite; then
    if ! has_azurite && ! command -v npm >/dev/null 2>&1; then
        echo "npm is missing. Install Node.js (Debian: apt-get install npm), then run this again" >&2
        exit 1
    fi
    alone
    if ! has_azurite; then
        echo "Installing Azurite (a minute the first time)" >&2
        mkdir -p "$cache/azurite"
        cp "$tools/azurite/package.json" "$tools/azurite/package-lock.json" "$cache/azurite/"
        (cd "$cache/azurite" && npm ci --ignore-scripts --no-audit --no-fund --silent 9>&- >&2)
        echo "$azurite_pins" > "$cache/azurite/pinned"
    fi
    if ! is_built fake-gcs-server "$gcs"; then
        echo "Building fake-gcs-server (two minutes the first time)" >&2
        build fake-gcs-server "" github.com/fsouza/fake-gcs-server
    fi
fi
echo "$gcs"
echo "$azurite"
