#!/bin/sh
# Build the program that writes Parquet by parquet-go and reads it by Arrow Go, for tests, into
# ${TANDEM_CACHE:-$HOME/.cache/tandem}/bin: tools/go-parquet, which pins both.
#
# Does nothing if it was built from these sources and pins. Prints the program's path.
set -eu
. "$(dirname "$0")/go.sh"

program="$cache/bin/go-parquet"
if ! is_built go-parquet "$program"; then
    alone
    if ! is_built go-parquet "$program"; then
        echo "Building the Parquet writer and reader in Go (a minute the first time)" >&2
        # Without Arrow Go's writer.
        build_tags=pqarrow_read_only
        build go-parquet "" .
    fi
fi
echo "$program"
