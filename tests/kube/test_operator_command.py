"""`tandem operator` as a process: options, log, health, signals."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError, URLError

import pytest

from kube.scrapes import free_port
from support.cluster.operator_thread import Resources
from support.jobs import quick_lake
from support.waiting import await_that
from tandem.cli.commands import operator
from tandem.cli.commands.operator import Locks
from tandem.errors import InvalidSpec

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

COMMAND = (sys.executable, "-m", "tandem.cli.main", "operator")
REPOSITORY = Path(__file__).resolve().parents[2]
Json = dict[str, Any]


class Process:
    def __init__(self, popen: subprocess.Popen[bytes], log: Path, port: int) -> None:
        self._popen = popen
        self._log = log
        self._port = port

    def health(self, path: str = "healthz") -> Json | None:
        """None as long as there is no answer."""
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self._port}/{path}", timeout=5
            ) as answer:
                found: Json = json.load(answer)
                return found
        except (HTTPError, URLError, OSError):
            return None

    def lines(self) -> list[Json]:
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    def signal(self, number: int) -> None:
        self._popen.send_signal(number)

    def end(self) -> int:
        return self._popen.wait(100)


@contextmanager
def command(folder: Path, *options: str, **environ: str) -> Iterator[Process]:
    port, log = free_port(), folder / "log"
    with log.open("wb") as output:
        popen = subprocess.Popen(
            [*COMMAND, "--health", f"127.0.0.1:{port}", *options],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(REPOSITORY / "operator"), **environ},
            stderr=output,
        )
    try:
        yield Process(popen, log, port)
    finally:
        if popen.poll() is None:
            popen.kill()
        popen.wait()


def with_plugin(kubeconfig: Path, folder: Path) -> Path:
    """The same login by a credential plugin, which adds a line to `runs` each time."""
    config = json.loads(kubeconfig.read_text())
    version = "client.authentication.k8s.io/v1"
    answer = {"apiVersion": version, "kind": "ExecCredential", "status": config["users"][0]["user"]}
    plugin = folder / "plugin"
    plugin.write_text(f"#!/bin/sh\necho run >>{folder / 'runs'}\necho '{json.dumps(answer)}'\n")
    plugin.chmod(0o700)
    config["users"][0]["user"] = {"exec": {"apiVersion": version, "command": "./plugin"}}
    changed = folder / "with-plugin.kubeconfig"
    changed.write_text(json.dumps(config))
    return changed


def test_it_runs_until_sigterm(cluster: Cluster, tmp_path: Path) -> None:
    space = Resources(cluster, cluster.namespace("command"))
    lake = quick_lake.make(tmp_path)
    # Options in the environment, as a Deployment gives them.
    environ = {
        "TANDEM_KUBECONFIG": str(with_plugin(cluster.operator_kubeconfig, tmp_path)),
        "TANDEM_NAMESPACE": space.namespace,
        "TANDEM_ETCD_ENDPOINT": cluster.etcd_endpoint,
        "TANDEM_ETCD_PREFIX": cluster.lock_prefix(),
        "TANDEM_ETCD_PASSWORD": "not to be seen",
        "POD_NAME": "operator-0",
    }
    with command(tmp_path, **environ) as process:
        space.table("t", lake.location)
        status = space.await_reason("LakeTable", "t", "Adopted")
        assert status["version"] == lake.version
        health = process.health()
        assert health is not None
        assert health["leads"] is True
        assert health["instance"] == "operator-0"
        assert process.health("readyz") is not None
        process.signal(signal.SIGTERM)
        assert process.end() == 0
        lines = process.lines()
    assert (tmp_path / "runs").read_text() == "run\n"  # for kopf's watches and our calls
    assert any(line["event"] == "leads" and line["instance"] == "operator-0" for line in lines)
    assert all({"level", "timestamp", "logger"} <= line.keys() for line in lines)
    assert not [line for line in lines if line["level"] not in ("info", "warning")], lines
    assert "not to be seen" not in str(lines)


def test_a_follower_is_healthy_and_ends_on_sigterm(cluster: Cluster, tmp_path: Path) -> None:
    options = ["--kubeconfig", str(cluster.operator_kubeconfig), "--etcd-endpoint", "127.0.0.1:1"]
    with command(tmp_path, *options, "--namespace", "nowhere") as process:
        await_that(lambda: process.health("readyz") is not None, process.lines)
        health = process.health()
        assert health is not None
        assert health["leads"] is False
        process.signal(signal.SIGTERM)
        assert process.end() == 0


def test_wrong_settings_are_reported_at_startup(tmp_path: Path) -> None:
    with command(tmp_path) as process:
        assert process.end() == 2
    text = (tmp_path / "log").read_text()
    assert "--etcd-endpoint" in text
    assert "--locks in-process" in text


def test_a_password_may_come_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("secret\n")
    settings = operator.etcd_settings(
        Locks.ETCD,
        ["a:2379", "b:2379"],
        prefix="/x",
        ttl_s=30,
        ca=None,
        certificate=None,
        key=None,
        user="tandem",
        password="",
        password_file=file,
    )
    assert settings is not None
    assert (settings.endpoints, settings.user) == (("a:2379", "b:2379"), "tandem")
    assert settings.password == "secret"
    assert "secret" not in repr(settings)


def test_a_template_is_a_mapping(tmp_path: Path) -> None:
    file = tmp_path / "template.yaml"
    file.write_text("spec: {driver: {cores: 1}}")
    assert operator.template(file) == {"spec": {"driver": {"cores": 1}}}
    file.write_text("- a list")
    with pytest.raises(InvalidSpec, match="mapping"):
        operator.template(file)
    file.write_text("{")
    with pytest.raises(InvalidSpec, match="YAML"):
        operator.template(file)
