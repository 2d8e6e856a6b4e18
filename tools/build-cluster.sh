#!/bin/sh
# Build the parts of a node that build-kubernetes.sh does not build, for `make e2e`:
#
#   kubernetes-node  kubelet, kube-scheduler, kube-proxy
#   coredns          coredns
#   spark-operator   the real Kubeflow Spark operator, and its Helm chart out of its Go module
#
# Usage: build-cluster.sh [PART...]   (all by default)
# Each is pinned by go.mod and go.sum in the folder of its name. Programs go into
# ${TANDEM_CACHE:-$HOME/.cache/tandem}/bin, the chart into charts/ next to it. Skips parts that
# exist. Prints the cache's path.
set -eu
. "$(dirname "$0")/go.sh"

bin="$cache/bin"
chart="$cache/charts/spark-operator"

is_there() {
    case $1 in
    kubernetes-node)
        is_built kubernetes-node "$bin/kubelet" "$bin/kube-scheduler" "$bin/kube-proxy"
        ;;
    coredns) is_built coredns "$bin/coredns" ;;
    spark-operator) is_built spark-operator "$bin/spark-operator" "$chart/Chart.yaml" ;;
    *)
        echo "build-cluster.sh: there is no part $1 (kubernetes-node, coredns, spark-operator)" >&2
        exit 2
        ;;
    esac
}

make_part() {
    case $1 in
    kubernetes-node)
        echo "Building kubelet, scheduler and proxy (five minutes the first time)" >&2
        version=$(sed -n 's|^.*k8s.io/kubernetes \(v[^ ]*\).*|\1|p' "$tools/$1/go.mod" | head -n 1)
        minor=${version#v1.}
        named=k8s.io/component-base/version
        build kubernetes-node \
            "-X $named.gitVersion=$version -X $named.gitMajor=1 -X $named.gitMinor=${minor%%.*}" \
            k8s.io/kubernetes/cmd/kubelet \
            k8s.io/kubernetes/cmd/kube-scheduler \
            k8s.io/kubernetes/cmd/kube-proxy
        ;;
    coredns)
        echo "Building CoreDNS (four minutes the first time)" >&2
        build coredns "" github.com/coredns/coredns
        ;;
    spark-operator)
        echo "Building the Spark operator (four minutes the first time)" >&2
        module=github.com/kubeflow/spark-operator/v2
        # Compared with go.sum on the way, as the program is.
        find_go spark-operator
        folder=$(
            cd "$tools/spark-operator"
            export GOTOOLCHAIN=local GOFLAGS=
            "$go" mod download "$module" 9>&- &&
                "$go" list -mod=readonly -m -f '{{.Dir}}' "$module" 9>&-
        )
        rm -rf "$chart" "$chart.fresh"
        mkdir -p "$chart.fresh"
        cp -R "$folder/charts/spark-operator-chart/." "$chart.fresh"
        chmod -R u+w "$chart.fresh"
        mv "$chart.fresh" "$chart"
        build spark-operator "" "$module/cmd/operator"
        ;;
    esac
}

for part in ${*:-kubernetes-node coredns spark-operator}; do
    if ! is_there "$part"; then
        alone
        is_there "$part" || make_part "$part"
    fi
done
echo "$cache"
