#!/bin/sh
# Read by build-image.sh and check-image.sh, at the root of the tree: which program builds and runs
# containers ($engine), what the image is called ($image), and where all of it is kept ($folder).

folder=${TANDEM_CACHE:-$HOME/.cache/tandem}/image
mkdir -p "$folder"
version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' operator/tandem/__init__.py)
# Kubernetes calls an image without a registry so.
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
