#!/bin/sh
# Build the program that prints the arguments with which the Spark operator would run spark-submit,
# for tests: our sources (tools/spark-arguments) inside those of the real Spark operator, because its
# function for the arguments is internal.
#
# Usage: build-spark-arguments.sh
# Pinned by go.mod and go.sum of tools/spark-operator. The program goes into
# ${TANDEM_CACHE:-$HOME/.cache/tandem}/bin. Does nothing if it exists. Prints its path.
set -eu
. "$(dirname "$0")/go.sh"

program="$cache/bin/spark-arguments"
module=github.com/kubeflow/spark-operator/v2

sources() {
    find "$tools/spark-arguments" -name '*.go' | sort | xargs cat "$tools/spark-operator/go.sum" | cksum
}

is_there() {
    [ -s "$program" ] && [ "$(cat "$program.pinned" 2>/dev/null)" = "$(sources)" ]
}

if ! is_there; then
    alone
    if ! is_there; then
        echo "Building the Spark operator's argument builder (four minutes the first time)" >&2
        find_go spark-operator
        work=$(mktemp -d "$cache/spark-arguments.XXXXXX")
        trap 'rm -rf "$work"' EXIT
        export GOTOOLCHAIN=local GOFLAGS=
        # Compared with go.sum on the way.
        folder=$(
            cd "$tools/spark-operator"
            "$go" mod download "$module" 9>&- &&
                "$go" list -mod=readonly -m -f '{{.Dir}}' "$module" 9>&-
        )
        mkdir "$work/operator" "$work/pins"
        cp -R "$folder/." "$work/operator"
        chmod -R u+w "$work/operator"
        mkdir -p "$work/operator/cmd/spark-arguments"
        cp "$tools/spark-arguments/command/main.go" "$work/operator/cmd/spark-arguments/"
        cp "$tools/spark-arguments/sparkapplication/arguments.go" \
            "$work/operator/internal/controller/sparkapplication/tandem_arguments.go"
        # The same pins, with the folder in the module's place.
        cp "$tools/spark-operator/go.mod" "$tools/spark-operator/go.sum" "$work/pins/"
        printf '\nreplace %s => ../operator\n' "$module" >> "$work/pins/go.mod"
        (
            cd "$work/pins"
            "$go" build -mod=mod -buildvcs=false -trimpath -ldflags '-s -w' \
                -o "$work/program" "$module/cmd/spark-arguments" 9>&-
        )
        mv "$work/program" "$program"
        sources > "$program.pinned"
    fi
fi
echo "$program"
