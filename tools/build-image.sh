#!/bin/bash
# Build the image `tandem:<version>` from the Dockerfile, and write it as an archive:
#
#     tools/build-image.sh            with podman, buildah or docker, whichever is there
#
#     TANDEM_ENGINE=buildah           with that one
#     TANDEM_IMAGE=registry/name:tag  under that name
#     TANDEM_BASE=name                on that base instead of debian:bookworm-slim
#     TANDEM_STANDIN=1                on a base of our own making, if no registry can be reached
#
# Prints two words: the archive's path (docker-archive: `docker load -i`, `podman load -i`,
# `ctr -n k8s.io images import`) and the image's name. pip's configuration and its certificate
# authority, if this machine has them, are lent to the build as secrets.
set -euo pipefail
cd "$(dirname "$0")/.."

cache=${TANDEM_CACHE:-$HOME/.cache/tandem}
folder=$cache/image
mkdir -p "$folder"
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' operator/tandem/__init__.py)
# Kubernetes calls an image without a registry so.
image=${TANDEM_IMAGE:-docker.io/library/tandem:$version}
base=${TANDEM_BASE:-docker.io/library/debian:bookworm-slim}

engine=${TANDEM_ENGINE:-}
if [ -z "$engine" ]; then
    if docker info >/dev/null 2>&1; then
        engine=docker
    else
        for engine in podman buildah ''; do command -v "${engine:-true}" >/dev/null 2>&1 && break; done
    fi
fi
if [ -z "$engine" ]; then
    echo "Building an image needs podman, buildah or docker: run \`apt-get install podman\`." >&2
    exit 1
fi

# A machine without systemd (a container, a bare virtual machine) cannot run containers as podman
# and buildah are made: they get settings and a store of their own, outside of the tree.
if [ "$engine" != docker ] && [ ! -d /run/systemd/system ] && [ "$(id -u)" = 0 ]; then
    export CONTAINERS_CONF=$folder/containers.conf CONTAINERS_STORAGE_CONF=$folder/storage.conf
    export CONTAINERS_REGISTRIES_CONF=$folder/registries.conf
    cat >"$CONTAINERS_CONF" <<END
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=30000:30000"]
netns = "host"
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
END
    cat >"$CONTAINERS_STORAGE_CONF" <<END
[storage]
driver = "overlay"
graphroot = "$folder/storage"
runroot = "$folder/run"
END
    : >"$CONTAINERS_REGISTRIES_CONF"
fi

has_image() {
    case "$engine" in
    buildah) buildah inspect --type image "$1" >/dev/null 2>&1 ;;
    *) "$engine" image inspect "$1" >/dev/null 2>&1 ;;
    esac
}

options=()
if ! has_image "$base" && ! timeout 300 "$engine" pull "$base" >"$folder/pull.log" 2>&1; then
    if [ -z "${TANDEM_STANDIN:-}" ]; then
        tail -n 3 "$folder/pull.log" >&2
        echo "The base $base cannot be pulled: set TANDEM_STANDIN=1 to build on one of our own making." >&2
        exit 1
    fi
    tools/base-image.sh "$engine" "$base"
fi
if [ "$engine" = docker ]; then options+=(--pull=false); else options+=(--pull=never); fi
for file in "${PIP_CONFIG_FILE:-}" "$HOME/.config/pip/pip.conf" /etc/pip.conf; do
    if [ -f "$file" ]; then
        options+=(--secret "id=pip_conf,src=$file")
        break
    fi
done
for file in "${PIP_CERT:-}" "${SSL_CERT_FILE:-}"; do
    if [ -f "$file" ]; then
        options+=(--secret "id=pip_ca,src=$file")
        break
    fi
done

# docker needs BuildKit for secrets; podman and buildah keep layers for the next time.
case "$engine" in
docker) export DOCKER_BUILDKIT=1 ;;
*) options+=(--layers --format docker) ;;
esac
"$engine" build "${options[@]}" --network host --build-arg "BASE=$base" \
    --build-arg "VERSION=$version" --tag "$image" --file Dockerfile . >&2

archive=$folder/tandem.tar
rm -f "$archive.part"
case "$engine" in
buildah) buildah push --quiet "$image" "docker-archive:$archive.part:$image" >&2 ;;
podman) podman save --quiet --format docker-archive --output "$archive.part" "$image" >&2 ;;
docker) docker save --output "$archive.part" "$image" ;;
esac
mv "$archive.part" "$archive"
echo "$archive $image"
