#!/bin/sh
# Build the S3 server that tests run against into ${TANDEM_CACHE:-$HOME/.cache/tandem}/bin.
#
# Does nothing if the version that tools/versitygw pins exists. Prints the program's path.
set -eu
. "$(dirname "$0")/go.sh"

program="$cache/bin/versitygw"
if ! is_built versitygw "$program"; then
    alone
    if ! is_built versitygw "$program"; then
        echo "Building the S3 server (two minutes the first time)" >&2
        build versitygw "" github.com/versity/versitygw/cmd/versitygw
    fi
fi
echo "$program"
