#!/bin/sh
# Build Helm into ${TANDEM_CACHE:-$HOME/.cache/tandem}/bin, for the tests of charts/ and `make e2e`.
#
# Does nothing if the version that tools/helm pins exists. Prints the program's path.
set -eu
. "$(dirname "$0")/go.sh"

program="$cache/bin/helm"
if ! is_built helm "$program"; then
    alone
    if ! is_built helm "$program"; then
        echo "Building Helm (three minutes the first time)" >&2
        version=$(sed -n 's|^.*helm.sh/helm/v3 \(v[^ ]*\).*|\1|p' "$tools/helm/go.mod" | head -n 1)
        minor=$(sed -n 's|^.*k8s.io/client-go v0.\([0-9]*\).*|\1|p' "$tools/helm/go.mod" | head -n 1)
        # As in Helm's own Makefile: the version of the cluster that `helm template` and
        # `helm lint` assume.
        said="-X helm.sh/helm/v3/internal/version.version=$version"
        for package in lint/rules chartutil; do
            named=helm.sh/helm/v3/pkg/$package
            said="$said -X $named.k8sVersionMajor=1 -X $named.k8sVersionMinor=$minor"
        done
        build helm "$said" \
            helm.sh/helm/v3/cmd/helm
    fi
fi
echo "$program"
