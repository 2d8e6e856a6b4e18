#!/bin/sh
# Download the Prometheus operator's CRDs for the objects of charts/tandem, for the chart's tests.
#
# Pinned by tools/prometheus-crds; no program is built. They go into crds/prometheus below
# ${TANDEM_CACHE:-$HOME/.cache/tandem}, whose path is printed. Does nothing if they exist.
set -eu
. "$(dirname "$0")/go.sh"

crds="$cache/crds/prometheus"
monitors="$crds/monitoring.coreos.com_servicemonitors.yaml"
rules="$crds/monitoring.coreos.com_prometheusrules.yaml"

if ! is_built prometheus-crds "$monitors" "$rules"; then
    alone
    if ! is_built prometheus-crds "$monitors" "$rules"; then
        echo "Fetching the Prometheus operator's CRDs" >&2
        module=github.com/prometheus-operator/prometheus-operator
        find_go prometheus-crds
        # Compared with go.sum on the way.
        folder=$(
            cd "$tools/prometheus-crds"
            export GOTOOLCHAIN=local GOFLAGS=
            "$go" mod download "$module" 9>&- &&
                "$go" list -mod=readonly -m -f '{{.Dir}}' "$module" 9>&-
        )
        mkdir -p "$crds"
        for file in "$monitors" "$rules"; do
            cp "$folder/example/prometheus-operator-crd/${file##*/}" "$crds/.fresh.$$"
            chmod u+w "$crds/.fresh.$$"
            mv "$crds/.fresh.$$" "$file"
        done
        stamp prometheus-crds
    fi
fi
echo "$crds"
