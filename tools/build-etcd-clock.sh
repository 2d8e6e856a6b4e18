#!/bin/sh
# Build an etcd whose wall clock tests move: `etcd-clock`, from the pins of tools/etcd.
#
# Its clock is ahead by the seconds in the file that ETCD_WALL_OFFSET_FILE names. Go's package time
# is compiled from its own sources, with one line more in Now (tools/etcd-clock): a program without
# libc takes no other clock, and the machine's is not ours to set. All that etcd consists of is
# compiled again, so only `make matrix` builds it.
#
# Skips what exists. Prints the program's path.
set -eu
. "$(dirname "$0")/go.sh"

program="$cache/bin/etcd-clock"

pins() {
    (cd "$tools" && cat etcd/go.mod etcd/go.sum etcd-clock/*.go build-etcd-clock.sh) | cksum
}

make_program() {
    find_go etcd
    root=$(GOTOOLCHAIN=local "$go" env GOROOT)
    fresh="$cache/bin/.etcd-clock.$$"
    trap 'rm -rf "$fresh"' EXIT
    mkdir -p "$fresh"
    now='^\tsec, nsec, mono := runtimeNow\(\)$'
    if ! awk "{print} /$now/ {print \"\\tsec += wallOffset()\"; found++} END {exit found != 1}" \
        "$root/src/time/time.go" >"$fresh/time.go"; then
        echo "build-etcd-clock.sh: time.Now of this Go is not as expected ($root)" >&2
        exit 1
    fi
    cp "$tools/etcd-clock/wall_offset.go" "$fresh/"
    printf '{"Replace": {"%s": "%s", "%s": "%s"}}\n' \
        "$root/src/time/time.go" "$fresh/time.go" \
        "$root/src/time/wall_offset.go" "$fresh/wall_offset.go" >"$fresh/overlay.json"
    (
        cd "$tools/etcd"
        GOTOOLCHAIN=local GOFLAGS= "$go" build -mod=readonly -buildvcs=false -trimpath \
            -overlay "$fresh/overlay.json" -ldflags "-s -w" -o "$fresh/etcd-clock" \
            go.etcd.io/etcd/server/v3 9>&-
    )
    mv "$fresh/etcd-clock" "$program"
    stamp etcd-clock
}

if ! is_built etcd-clock "$program"; then
    alone
    if ! is_built etcd-clock "$program"; then
        echo "Building an etcd with a clock of its own (some minutes the first time)" >&2
        make_program
    fi
fi
echo "$program"
