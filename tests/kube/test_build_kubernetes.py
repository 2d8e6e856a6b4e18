"""`tools/build-kubernetes.sh` with a stand-in for Go: what it asks Go for, and when."""

from __future__ import annotations

import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from cluster_processes import REPOSITORY

SCRIPT = REPOSITORY / "tools" / "build-kubernetes.sh"
# Writes down how it was called, and makes a program of each package's name.
GO = """#!/bin/sh
[ "$1" = version ] && { echo "go version go1.$MINOR.0 linux/amd64"; exit; }
echo "$PWD GOTOOLCHAIN=$GOTOOLCHAIN GOFLAGS=$GOFLAGS $*" >> "$CALLS"
[ -z "$FAILS" ] || exit 1
for last in "$@"; do
    case $previous in -o) target=$last ;; esac
    case $last in k8s.io/*) echo program > "$target${last##*/}"; chmod +x "$target${last##*/}" ;;
        go.etcd.io/*) echo program > "$target"; chmod +x "$target" ;; esac
    previous=$last
done
"""


@dataclass(frozen=True)
class Machine:
    """A machine with a Go of that minor version, and an empty cache."""

    folder: Path
    minor: int = 99

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    @property
    def calls(self) -> list[str]:
        log = self.folder / "calls"
        return log.read_text().splitlines() if log.exists() else []

    def build(self, *parts: str, fails: bool = False) -> subprocess.CompletedProcess[str]:
        environ = {
            "PATH": f"{self.folder}:{os.environ['PATH']}",
            "TANDEM_CACHE": str(self.cache),
            "CALLS": str(self.folder / "calls"),
            "MINOR": str(self.minor),
            "FAILS": "yes" if fails else "",
            # A step that needs Python fails with the name of the missing program.
            "PYTHON": "/nonexistent/python",
        }
        return subprocess.run(
            [str(SCRIPT), *parts], env=environ, capture_output=True, text=True, check=False
        )


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    program = tmp_path / "go"
    program.write_text(GO)
    program.chmod(0o755)
    return Machine(tmp_path)


def test_builds_pinned_versions_once(machine: Machine) -> None:
    done = machine.build("etcd", "kubernetes")
    assert (done.returncode, done.stdout.strip()) == (0, str(machine.cache))
    names = {"etcd", "kube-apiserver", "kube-controller-manager", "kubectl"}
    assert {path.name for path in (machine.cache / "bin").iterdir() if path.suffix == ""} == names
    assert len(machine.calls) == 2
    for call in machine.calls:
        # What is pinned is what is built: Go takes no other version, of modules or of itself.
        assert "GOTOOLCHAIN=local GOFLAGS= build -mod=readonly" in call
    pins = (REPOSITORY / "tools" / "kubernetes" / "go.mod").read_text()
    [version] = re.findall(r"k8s.io/kubernetes (v\S+)", pins)
    assert f"gitVersion={version} " in machine.calls[1]
    assert machine.build("etcd", "kubernetes").returncode == 0
    assert len(machine.calls) == 2


def test_builds_again_after_a_pin_changes(machine: Machine) -> None:
    machine.build("etcd")
    stamp = machine.cache / "bin" / "etcd.pinned"
    stamp.write_text("other pins\n")
    machine.build("etcd")
    assert len(machine.calls) == 2
    (machine.cache / "bin" / "etcd").unlink()
    machine.build("etcd")
    assert len(machine.calls) == 3


def test_two_concurrent_builds_build_once(machine: Machine) -> None:
    with ThreadPoolExecutor(2) as pool:
        ends = list(pool.map(lambda _: machine.build("kubernetes").returncode, range(2)))
    assert ends == [0, 0]
    assert len(machine.calls) == 1


def test_a_failed_build_leaves_nothing(machine: Machine) -> None:
    assert machine.build("kubernetes", fails=True).returncode == 1
    assert list((machine.cache / "bin").iterdir()) == []


def test_an_old_go_is_not_used(machine: Machine) -> None:
    done = replace(machine, minor=24).build("etcd")
    assert done.returncode != 0
    assert re.search(r"Installing Go 1\.\d+\.\d+ into", done.stderr)
    assert machine.calls == []


def test_an_unknown_part_is_refused(machine: Machine) -> None:
    done = machine.build("etcd", "kubelet")
    assert done.returncode == 2
    assert "there is no part kubelet" in done.stderr


@pytest.mark.parametrize("part", ["etcd", "kubernetes", "spark-operator-crds", "versitygw"])
def test_every_pin_has_its_checksum(part: str) -> None:
    folder = REPOSITORY / "tools" / part
    pins = (folder / "go.mod").read_text()
    sums = (folder / "go.sum").read_text()
    replaced = dict(re.findall(r"^\s+(\S+) => \S+ (\S+)$", pins, re.MULTILINE))
    required = re.findall(r"^(?:require)?\s+([\w./-]+) (v\S+)", pins, re.MULTILINE)
    assert required
    for module, version in required:
        assert f"{module} {replaced.get(module, version)}/go.mod h1:" in sums
