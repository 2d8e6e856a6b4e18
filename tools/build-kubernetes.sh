#!/bin/sh
# Build the real parts of a Kubernetes cluster that tests and `make demo-cluster` run against:
#
#   etcd                 etcd
#   kubernetes           kube-apiserver, kube-controller-manager, kubectl
#   spark-operator-crds  the Spark operator's CRDs, copied out of its Go module
#
# Usage: build-kubernetes.sh [PART...]   (all by default)
# Each is pinned by go.mod and go.sum in the folder of its name. Programs go into
# ${TANDEM_CACHE:-$HOME/.cache/tandem}/bin, CRDs into crds/ next to it. Skips parts that
# exist. Prints the cache's path.
set -eu
. "$(dirname "$0")/go.sh"

bin="$cache/bin"
crds="$cache/crds/sparkoperator"

is_there() {
    case $1 in
    etcd) is_built etcd "$bin/etcd" ;;
    kubernetes)
        is_built kubernetes "$bin/kube-apiserver" "$bin/kube-controller-manager" "$bin/kubectl"
        ;;
    spark-operator-crds)
        is_built spark-operator-crds "$crds/sparkoperator.k8s.io_sparkapplications.yaml"
        ;;
    *)
        echo "build-kubernetes.sh: there is no part $1 (etcd, kubernetes, spark-operator-crds)" >&2
        exit 2
        ;;
    esac
}

# version PART MODULE: the version of the Go module that the part pins.
version() {
    sed -n "s|^.*$2 \(v[^ ]*\).*|\1|p" "$tools/$1/go.mod" | head -n 1
}

make_part() {
    case $1 in
    etcd)
        echo "Building etcd (one minute the first time)" >&2
        build etcd "" go.etcd.io/etcd/server/v3
        ;;
    kubernetes)
        echo "Building the Kubernetes API server and its tools (six minutes the first time)" >&2
        version=$(version kubernetes k8s.io/kubernetes)
        minor=${version#v1.}
        named=k8s.io/component-base/version
        build kubernetes \
            "-X $named.gitVersion=$version -X $named.gitMajor=1 -X $named.gitMinor=${minor%%.*}" \
            k8s.io/kubernetes/cmd/kube-apiserver \
            k8s.io/kubernetes/cmd/kube-controller-manager \
            k8s.io/kubernetes/cmd/kubectl
        ;;
    spark-operator-crds)
        echo "Fetching the Spark operator's CRDs" >&2
        module=github.com/kubeflow/spark-operator/v2
        version=$(version spark-operator-crds $module)
        find_go spark-operator-crds
        # The download is compared with go.sum; no program is built.
        folder=$(
            cd "$tools/spark-operator-crds"
            export GOTOOLCHAIN=local GOFLAGS=
            "$go" mod download "$module@$version" 9>&- &&
                "$go" list -mod=readonly -m -f '{{.Dir}}' "$module" 9>&-
        )
        mkdir -p "$crds"
        for found in "$folder"/config/crd/bases/*.yaml; do
            cp "$found" "$crds/.fresh.$$"
            chmod u+w "$crds/.fresh.$$"
            mv "$crds/.fresh.$$" "$crds/${found##*/}"
        done
        stamp spark-operator-crds
        ;;
    esac
}

for part in ${*:-etcd spark-operator-crds kubernetes}; do
    if ! is_there "$part"; then
        alone
        is_there "$part" || make_part "$part"
    fi
done
echo "$cache"
