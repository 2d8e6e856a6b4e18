#!/bin/bash
# Build the image `tandem:<version>` from the Dockerfile, and write it as an archive:
#
#     tools/build-image.sh            with podman, buildah or docker, the first that exists
#
#     TANDEM_ENGINE=buildah           with that one
#     TANDEM_IMAGE=registry/name:tag  under that name
#     TANDEM_BASE=name                on that base instead of debian:bookworm-slim
#     TANDEM_STANDIN=1                on a substitute base, if no registry is reachable
#
# Prints two words: the archive's path (docker-archive: `docker load -i`, `podman load -i`,
# `ctr -n k8s.io images import`) and the image's name. pip's configuration and its certificate
# authority, if this machine has them, are secrets of the build.
set -euo pipefail
cd "$(dirname "$0")/.."

base=${TANDEM_BASE:-docker.io/library/debian:bookworm-slim}

. tools/image/engine.sh

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
