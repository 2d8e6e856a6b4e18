#!/bin/sh
# Sourced by build-image.sh and check-image.sh, at the root of the tree: the program that builds and
# runs containers ($engine), the name of the image ($image), and the folder for all files ($folder).

folder=${TANDEM_CACHE:-$HOME/.cache/tandem}/image
mkdir -p "$folder"
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' operator/tandem/__init__.py)
# Kubernetes' name for an image without a registry.
image=${TANDEM_IMAGE:-docker.io/library/tandem:$version}

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

# Without systemd (in a container, on a bare virtual machine), podman and buildah do not work with
# their default settings: they get separate settings and a separate store, outside of the tree.
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
