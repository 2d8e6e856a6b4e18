#!/bin/sh
# Build Helm into ${TANDEM_CACHE:-$HOME/.cache/tandem}/bin, for the tests of charts/ and `make e2e`.
#
# Does nothing when the version that tools/helm pins is there. Prints the program's path.
set -eu
. "$(dirname "$0")/go.sh"

program="$cache/bin/helm"
if ! is_built helm "$program"; then
    alone
    if ! is_built helm "$program"; then
        echo "Building Helm (three minutes the first time)" >&2
        version=$(sed -n 's|^.*helm.sh/helm/v3 \(v[^ ]*\).*|\1|p' "$tools/helm/go.mod" | head -n 1)
        build helm "-X helm.sh/helm/v3/internal/version.version=$version" \
            helm.sh/helm/v3/cmd/helm
    fi
fi
echo "$program"
