"""The chart's bundled etcd as processes of this machine: what its pods would run, with their
arguments and their Secrets as files."""

from __future__ import annotations

import base64
import contextlib
import io
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from cluster_processes import Part, built, free_ports
from support.cluster.helm import containers, of_kind, one
from tandem.cli.app import app
from tandem.cli.commands.operator import Locks, etcd_settings
from tandem.errors import LocksUnavailable
from tandem.locks.etcd.store import EtcdLocks

Json = dict[str, Any]
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


def _pod(objects: Sequence[Json], kind: str) -> Json:
    found: Json = one(objects, kind)["spec"]["template"]["spec"]
    return found


def _mount(objects: Sequence[Json], pod: Json, container: Json, root: Path) -> None:
    """Write below `root` the files of Secrets that the container would see."""
    secrets = {each["metadata"]["name"]: each["data"] for each in of_kind(objects, "Secret")}
    volumes = {v["name"]: v["secret"] for v in pod["volumes"] if "secret" in v}
    for mount in container["volumeMounts"]:
        volume = volumes.get(mount["name"], {})
        for item in volume.get("items", ()):
            file = root / mount["mountPath"].lstrip("/") / item["path"]
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(base64.b64decode(secrets[volume["secretName"]][item["key"]]))


def _moved(options: Sequence[str], root: Path, endpoint: str) -> list[str]:
    """The same options where files lie below `root`, and etcd is here."""
    moved = []
    for option in options:
        name, _, value = option.partition("=")
        if value.startswith("/etc/"):
            value = f"{root}{value}"
        moved.append(f"{name}={endpoint if name == '--etcd-endpoint' else value}")
    return moved


@dataclass(frozen=True)
class Bundled:
    """A running one. Each container has a root of its own, so it reads what it is given only."""

    objects: Sequence[Json]
    folder: Path
    endpoint: str

    def init(self) -> str:
        """Run the init container; what it says."""
        pod = _pod(self.objects, "Deployment")
        container = containers(pod)[0]
        _mount(self.objects, pod, container, self.folder / "init")
        words = _moved(container["args"][1:], self.folder / "init", self.endpoint)
        command = self._command(container["args"][0])
        with contextlib.redirect_stderr(io.StringIO()) as stderr:
            command.main(words, standalone_mode=False)
        return stderr.getvalue()

    def can_lock(self, **changes: Any) -> bool:
        """Whether a client with the operator's options (except `changes`) reaches the locks."""
        pod = _pod(self.objects, "Deployment")
        container = pod["containers"][0]
        root = self.folder / "operator"
        _mount(self.objects, pod, container, root)
        words = [word for word in container["args"][1:] if word.startswith("--etcd-")]
        command = self._command("operator")
        with command.make_context("tandem", _moved(words, root, self.endpoint)) as context:
            given = context.params
        options = {
            "prefix": given["etcd_prefix"],
            "ttl_s": given["etcd_ttl"],
            "ca": given["etcd_ca"],
            "certificate": given["etcd_certificate"],
            "key": given["etcd_key"],
            "user": given["etcd_user"],
            "password": "",
            "password_file": given["etcd_password_file"],
            **changes,
        }
        settings = etcd_settings(Locks.ETCD, given["etcd_endpoints"], **options)
        assert settings is not None
        store = EtcdLocks(settings)
        try:
            store.entries("table")
        except LocksUnavailable:
            return False
        finally:
            store.close()
        return True

    @staticmethod
    def _command(name: str) -> Any:
        commands: Any = typer.main.get_command(app)
        return commands.commands[name]


def _answers(port: int, path: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@contextmanager
def bundled(objects: Sequence[Json], folder: Path) -> Iterator[Bundled]:
    """Start etcd as the StatefulSet would; it ends with the block."""
    pod = _pod(objects, "StatefulSet")
    [container] = pod["containers"]
    root = folder / "etcd"
    _mount(objects, pod, container, root)
    client, peer, metrics = free_ports(3)
    words = [
        word.replace("=/", f"={root}/")
        .replace("0.0.0.0:2379", f"127.0.0.1:{client}")
        .replace("127.0.0.1:2380", f"127.0.0.1:{peer}")
        .replace("0.0.0.0:2381", f"127.0.0.1:{metrics}")
        for word in container["args"]
    ]
    command = [str(built("etcd") / "bin" / "etcd"), *words, "--unsafe-no-fsync"]
    (root / "var" / "lib" / "etcd").mkdir(parents=True)
    paths = {container[probe]["httpGet"]["path"] for probe in PROBES}
    part = Part("etcd", command, root, lambda: all(_answers(metrics, path) for path in paths))
    try:
        part.start()
        yield Bundled(objects, folder, f"https://localhost:{client}")
    finally:
        part.kill()
