"""Checks what a node needs of this machine: root, Debian's programs, control groups.

As a program it checks what `make e2e` needs, before anything is built; with the argument `images`,
what `make e2e-images` does. Standard library only, since it then runs without the environment of
this repository.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

PLUGINS = Path("/usr/lib/cni")
"""The folder of Debian's containernetworking-plugins."""

_PACKAGES = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "iptables": "iptables",
    "ip": "iproute2",
    "openssl": "openssl",
    "busybox": "busybox-static",
}
_ENGINES = ("podman", "buildah")
_OTHERS = frozenset({"kubelet", "kube-proxy", "k3s-server", "k3s-agent"})
_PLUGIN_PACKAGE = "containernetworking-plugins"
_PLUGIN_NAMES = ("bridge", "host-local", "loopback", "portmap")


class NotHere(RuntimeError):
    """This machine cannot be a node; the message has the remedy."""


def program(name: str) -> str:
    """The path of a program, also of administrators' programs.

    Raises: NotHere.
    """
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if found is None:
        raise NotHere(f"there is no {name} here: apt-get install {_PACKAGES.get(name, name)}")
    return found


def check(*, images: bool = False) -> None:
    """Raises: NotHere, with all missing packages at once; with `images`, also those that building
    our image needs."""
    if not Path("/proc/self/cgroup").exists():
        raise NotHere("a node needs Linux; make e2e KUBECONTEXT=NAME uses a cluster elsewhere")
    missing = sorted({*_missing_packages(), *(_missing_for_images() if images else ())})
    install = _install(missing)
    if os.geteuid() != 0:
        raise NotHere(
            "a node needs root: run this as root, or in a cluster elsewhere:"
            " make e2e KUBECONTEXT=NAME" + (f". It also needs: {install}" if missing else "")
        )
    if not any(Path("/sys/fs/cgroup").iterdir()):
        raise NotHere("no control groups are mounted at /sys/fs/cgroup")
    if missing:
        raise NotHere(f"a node needs: {install}")


def check_images() -> None:
    """Raises: NotHere, with all packages at once that building our image needs."""
    if missing := _missing_for_images():
        raise NotHere(f"building the image needs: {_install(missing)}")


def _install(packages: Iterable[str]) -> str:
    return f"apt-get install --no-install-recommends {' '.join(packages)}"


def _missing_packages() -> list[str]:
    missing = {package for name, package in _PACKAGES.items() if not _has(name)}
    if not all((PLUGINS / name).exists() for name in _PLUGIN_NAMES):
        missing.add(_PLUGIN_PACKAGE)
    return sorted(missing)


def _missing_for_images() -> list[str]:
    """As `tools/image/engine.sh` and `tools/build-image.sh` choose."""
    missing = []
    if os.environ.get("TANDEM_STANDIN") and not _has("mmdebstrap"):
        missing.append("mmdebstrap")
    if not any(map(_has, _ENGINES)) and not _docker_answers():
        missing.append(_ENGINES[0])
    return missing


def _docker_answers() -> bool:
    """Whether there is a daemon: its client alone builds nothing."""
    if not _has("docker"):
        return False
    told = subprocess.run([program("docker"), "info"], capture_output=True, timeout=60, check=False)
    return told.returncode == 0


def alone() -> None:
    """Raises: NotHere if another node runs on this machine: both would share rules and control
    groups."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            name = (process / "comm").read_text().strip()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if name in _OTHERS:
            raise NotHere(
                f"{name} (process {process.name}) runs here: this machine is a node already;"
                " make e2e KUBECONTEXT=NAME uses it"
            )


def _has(name: str) -> bool:
    try:
        program(name)
    except NotHere:
        return False
    return True


if __name__ == "__main__":
    try:
        if sys.argv[1:] == ["images"]:
            check_images()
        else:
            check(images=not os.environ.get("E2E_IMAGE_ARCHIVE"))
    except NotHere as problem:
        sys.exit(f"make e2e: {problem}")
