#!/bin/sh
# Build the program of tests/gitops that evaluates an object with the code of Argo CD, Flux and
# kstatus (tools/gitops). It goes into ${TANDEM_CACHE:-$HOME/.cache/tandem}/bin.
#
# Does nothing if the program is up to date with tools/gitops. Prints the program's path.
set -eu
. "$(dirname "$0")/go.sh"

# The source of this program is in this repository, so its text counts, too.
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
