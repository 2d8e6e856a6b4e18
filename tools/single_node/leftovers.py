"""Removes the remains of containers on a machine: processes, mounts, networks, groups.

It finds them by the cluster's own folders and names, so that no other cluster or container on this
machine is affected. Also works for a cluster whose processes have ended.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from single_node.needs import program
from single_node.settings import BRIDGE, Place

_WITHIN_S = 20.0
_POLL_S = 0.1


def kill_containers(place: Place) -> None:
    """Kill all processes of all containers and their monitors, as a power failure would."""
    found = {pid for shim in _shims(place) for pid in (shim, *_below(shim))}
    for pid in found:
        with suppress(ProcessLookupError):  # it ended with another one
            os.kill(pid, signal.SIGKILL)
    pause = threading.Event()
    for _ in range(int(_WITHIN_S / _POLL_S)):
        if not any(_alive(pid) for pid in found):
            return
        pause.wait(_POLL_S)
    raise RuntimeError(f"these processes of containers do not end: {sorted(found)}")


def remove(place: Place, kube_proxy: str) -> None:
    """Remove all remains of a cluster at this place, including its folders."""
    kill_containers(place)
    for namespace in _mounts(Path("/run/netns"), Path("/var/run/netns")):
        # CNI's, named by containerd; ours are those on our bridge, which is removed next.
        if namespace.name.startswith("cni-") and _is_ours(namespace):
            _unmount(namespace)
            namespace.unlink(missing_ok=True)
    for mount in _mounts(place.folder, place.run):
        _unmount(mount)
    subprocess.run([program("ip"), "link", "delete", BRIDGE], capture_output=True, check=False)
    # Its rules, and those of CNI's masquerading.
    subprocess.run([kube_proxy, "--cleanup"], capture_output=True, check=False)
    _firewall()
    _masquerading()
    _control_groups()
    _links_to_logs(place)
    shutil.rmtree(place.folder, ignore_errors=True)
    shutil.rmtree(place.run, ignore_errors=True)


def _shims(place: Place) -> Iterator[int]:
    mark = str(place.socket).encode()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if words[0].endswith(b"containerd-shim-runc-v2") and mark in words:
            yield int(process.name)


def _below(pid: int) -> Iterator[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(word) for task in tasks for word in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return
    for child in children:
        yield child
        yield from _below(child)


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def _mounts(*below: Path) -> list[Path]:
    """Mount points below these folders, the innermost first."""
    found = []
    for line in Path("/proc/mounts").read_text().splitlines():
        point = Path(line.split()[1].encode().decode("unicode_escape"))
        if any(folder in point.parents for folder in below):
            found.append(point)
    return sorted(set(found), key=lambda point: len(point.parts), reverse=True)


def _is_ours(namespace: Path) -> bool:
    """Whether a pod of this cluster had that network: its address is in the cluster's range."""
    seen = subprocess.run(
        [program("ip"), "-n", namespace.name, "-4", "-oneline", "address"],
        capture_output=True,
        check=False,
        text=True,
    )
    return " 10.214.40." in seen.stdout


def _unmount(point: Path) -> None:
    subprocess.run([program("umount"), "-l", str(point)], capture_output=True, check=False)


def _firewall() -> None:
    """The chain that kube-proxy creates first and does not remove."""
    chain = "KUBE-FIREWALL"
    for words in (["-D", "INPUT", "-j"], ["-D", "OUTPUT", "-j"], ["-F"], ["-X"]):
        command = [program("iptables"), *words, chain]
        subprocess.run(command, capture_output=True, check=False)


def _masquerading() -> None:
    """CNI has a chain for each pod, with the network's name in its comment."""
    iptables = program("iptables")
    listed = subprocess.run(
        [iptables, "-t", "nat", "-S"], capture_output=True, check=False, text=True
    ).stdout
    chains = set()
    for line in listed.splitlines():
        words = line.split()
        if words[:2] == ["-A", "POSTROUTING"] and 'name: "tandem"' in line.replace("\\", ""):
            chains.add(words[words.index("-j") + 1])
            address = words[words.index("-s") + 1]
            subprocess.run(
                [iptables, "-t", "nat", "-D", "POSTROUTING", "-s", address, "-j", words[-1],
                 "-m", "comment", "--comment", line.split('--comment "')[1].rsplit('"', 1)[0]
                 .replace("\\", "")],
                capture_output=True, check=False,
            )  # fmt: skip
    for chain in chains:
        for action in ("-F", "-X"):
            subprocess.run([iptables, "-t", "nat", action, chain], capture_output=True, check=False)


def _links_to_logs(place: Place) -> None:
    """Kubelet links each container's log into the folder that log collectors read."""
    for link in Path("/var/log/containers").glob("*.log"):
        if link.is_symlink() and place.folder in link.readlink().parents:
            link.unlink()


def _control_groups() -> None:
    """Remove kubelet's empty groups: those of a running kubelet are not empty."""
    for tree in {
        *Path("/sys/fs/cgroup").glob("kubepods"),
        *Path("/sys/fs/cgroup").glob("*/kubepods"),
    }:
        for folder, _, _ in os.walk(tree, topdown=False):
            try:
                Path(folder).rmdir()
            except OSError:
                continue  # it still has processes
