#!/bin/sh
# Build the judges of tests/gitops: what Argo CD, Flux and kstatus think of an object, by their own
# code (tools/gitops). They go into ${TANDEM_CACHE:-$HOME/.cache/tandem}/bin.
#
# Does nothing when what tools/gitops pins and says is there. Prints the program's path.
set -eu
. "$(dirname "$0")/go.sh"

# Unlike the other programs this one is ours: its text counts, too.
pins() {
    cat "$tools/$1/go.mod" "$tools/$1/go.sum" "$tools/$1"/*.go | cksum
}

program="$cache/bin/gitops"
if ! is_built gitops "$program"; then
    alone
    if ! is_built gitops "$program"; then
        echo "Building Argo CD's, Flux's and kstatus's judgement (two minutes the first time)" >&2
        build gitops "" .
    fi
fi
echo "$program"
