#!/bin/sh
# Make a substitute for the image that the Dockerfile builds on, for machines without a registry:
# the same Debian, from the same packages (mmdebstrap, as root), with the tag of the real one.
#
#     tools/base-image.sh ENGINE [NAME]      ENGINE: podman, buildah or docker
#
# Before a release, build on the official image, too.
set -eu
engine=${1:?podman, buildah or docker}
name=${2:-docker.io/library/debian:bookworm-slim}
mirror=${TANDEM_DEBIAN_MIRROR:-http://deb.debian.org}

if ! command -v mmdebstrap >/dev/null 2>&1; then
    echo "A base image needs mmdebstrap: run \`apt-get install mmdebstrap\`." >&2
    exit 1
fi
work=$(mktemp -d "${TMPDIR:-/var/tmp}/tandem-base-XXXXXX")
trap 'rm -rf "$work"' EXIT
# Like the official one: no documentation, no translations, no recommended packages, and /bin below
# /usr from the start, not moved there by a package that brings all of Perl.
mmdebstrap --quiet --variant=apt --mode=root --components=main \
    --include=usr-is-merged,adduser,mount,passwd,tzdata \
    --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
    --setup-hook='printf "Package: usrmerge\nPin: release *\nPin-Priority: -1\n" >"$1/etc/apt/preferences.d/usrmerge"' \
    --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-include=/usr/share/doc/*/copyright' \
    --dpkgopt='path-exclude=/usr/share/man/*' \
    --dpkgopt='path-exclude=/usr/share/groff/*' \
    --dpkgopt='path-exclude=/usr/share/info/*' \
    --dpkgopt='path-exclude=/usr/share/lintian/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --customize-hook='rm -f "$1/etc/resolv.conf" "$1/etc/hostname" "$1/etc/apt/preferences.d/usrmerge"' \
    --aptopt='Apt::Install-Recommends "false"' \
    bookworm "$work/root.tar" \
    "deb $mirror/debian bookworm main" \
    "deb $mirror/debian bookworm-updates main" \
    "deb $mirror/debian-security bookworm-security main"
case "$engine" in
buildah)
    container=$(buildah from scratch)
    buildah add --quiet "$container" "$work/root.tar" / >/dev/null
    buildah config --cmd bash "$container"
    buildah commit --quiet --rm "$container" "$name" >/dev/null
    ;;
podman | docker)
    "$engine" import --change 'CMD ["bash"]' "$work/root.tar" "$name" >/dev/null
    ;;
*)
    echo "base-image.sh: $engine is none of podman, buildah, docker" >&2
    exit 2
    ;;
esac
echo "Made a stand-in for $name." >&2
