"""Login by kubeconfigs, by credential plugins (real programs) and by the pod's service account."""

from __future__ import annotations

import asyncio
import base64
import json
import ntpath
import os
import posixpath
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from kubernetes.aio.config import incluster_config

from tandem.errors import AccessDenied, InvalidSpec, TandemError
from tandem.kube.client import credentials
from tandem.kube.client.api import Api
from tandem.kube.client.credentials import (
    AUTHORIZATION,
    Credentials,
    Login,
    absolute,
    absolute_command,
    login_handler,
    usual_files,
)
from tandem.kube.client.resources import path

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

Json = dict[str, Any]
V1 = "client.authentication.k8s.io/v1"


def kubeconfig(folder: Path, user: Json, **cluster: Any) -> Path:
    file = folder / "config"
    body = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u", "namespace": "n"}}],
        "clusters": [{"name": "k", "cluster": {"server": "https://api:6443", **cluster}}],
        "users": [{"name": "u", "user": user}],
    }
    file.write_text(yaml.safe_dump(body))
    return file


def login(*files: Path, context: str | None = None) -> Login:
    return asyncio.run(Credentials(files, context).log_in())


class Plugin:
    """A credential plugin: a shell script that counts its runs and answers with what lies in
    `answer`."""

    def __init__(self, folder: Path, name: str = "plugin") -> None:
        folder.mkdir(exist_ok=True)
        self.program = folder / name
        self._answer = folder / f"{name}.json"
        self._runs = folder / f"{name}.runs"
        record = f'printf "%s\\n" "$KUBERNETES_EXEC_INFO" >>{self._runs}'
        self.program.write_text(f"#!/bin/sh\n{record}\ncat {self._answer}\n")
        self.program.chmod(0o755)

    def answers(self, *, expires: datetime | None = None, **status: str) -> None:
        if expires is not None:
            status["expirationTimestamp"] = expires.strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {"apiVersion": V1, "kind": "ExecCredential", "status": status}
        self._answer.write_text(json.dumps(body))

    def user(self, command: str = "", **options: Any) -> Json:
        return {"exec": {"apiVersion": V1, "command": command or str(self.program), **options}}

    @property
    def runs(self) -> list[Json]:
        if not self._runs.exists():
            return []
        return [json.loads(line) for line in self._runs.read_text().splitlines()]


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    made = Plugin(tmp_path / "bin")
    made.answers(token="from the cloud")
    return made


# Kubeconfigs -----------------------------------------------------------------------------------


def test_files_are_relative_to_the_kubeconfig_that_names_them(tmp_path: Path) -> None:
    users, clusters = tmp_path / "users", tmp_path / "clusters"
    for folder, names in ((users, ("token", "crt", "key")), (clusters, ("ca.crt",))):
        folder.mkdir()
        for name in names:
            (folder / name).write_text("secret\n")
    certificate = {"client-certificate": "crt", "client-key": "./key"}
    first = kubeconfig(users, {"tokenFile": "token", **certificate})
    first.write_text(first.read_text().replace("name: k\n", "name: other\n"))
    found = login(first, kubeconfig(clusters, {}, **{"certificate-authority": "ca.crt"}))
    assert found.authorization == "Bearer secret"
    assert found.namespace == "n"
    info = found.for_kopf()
    assert (info.server, info.scheme, info.token) == ("https://api:6443", "Bearer", "secret")
    assert info.as_http_headers() == {"Authorization": "Bearer secret"}
    assert info.ca_path == str(clusters / "ca.crt")
    assert (info.certificate_path, info.private_key_path) == (
        str(users / "crt"),
        str(users / "key"),
    )


def test_a_certificate_may_stand_in_it(tmp_path: Path) -> None:
    data = {
        f"client-{name}-data": base64.b64encode(name.encode()).decode()
        for name in ("certificate", "key")
    }
    file = kubeconfig(tmp_path, data)
    info = login(file).for_kopf()
    assert Path(str(info.certificate_path)).read_text() == "certificate"
    assert Path(str(info.private_key_path)).read_text() == "key"
    # Only we may read the file; it is removed when the process ends, and made once.
    assert Path(str(info.private_key_path)).stat().st_mode & 0o077 == 0
    assert login(file).for_kopf() == info


def test_name_and_password(tmp_path: Path) -> None:
    found = login(kubeconfig(tmp_path, {"username": "jane", "password": "pass"}))
    assert found.authorization == "Basic " + base64.b64encode(b"jane:pass").decode()


def test_all_files_of_the_variable_and_the_usual_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert usual_files({"KUBECONFIG": ":/a::/b"}) == [Path("/a"), Path("/b")]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert usual_files({}) == [tmp_path / ".kube" / "config"]
    assert usual_files({"KUBECONFIG": "~/x"}) == [tmp_path / "x"]


def test_an_empty_kubeconfig_is_ignored(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.touch()
    assert login(empty, kubeconfig(tmp_path, {"token": "t"})).authorization == "Bearer t"


def test_missing_files_and_contexts_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="contexts"):
        login(kubeconfig(tmp_path, {}), context="other")
    with pytest.raises(InvalidSpec, match="--kubeconfig"):
        login(tmp_path / "none")
    file = kubeconfig(tmp_path, {}, **{"certificate-authority": "ca"})
    with pytest.raises(InvalidSpec, match=str(tmp_path / "ca")):
        login(file)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        "users: {token: hush}",
        "users: [{user: {token: hush}}]",
        "users: [{name: u, user: {exec: {token: hush}}}]",
        "{contexts: [{name: c}], current-context: c, users: [{name: u, user: {token: hush}}]}",
        "{contexts: [{name: c, context: {cluster: k, user: u}}], current-context: c,"
        " clusters: [{name: k, cluster: 1}], users: [{name: u, user: {token: hush}}]}",
        "{contexts: [{name: c, context: {cluster: k, user: u}}], current-context: c,"
        " clusters: [{name: k, cluster: {server: 'https://a'}}],"
        " users: [{name: u, user: {client-key-data: hush, auth-provider: {name: oidc}}}]}",
    ],
)
def test_a_wrong_file_is_an_error_that_quotes_no_credential(text: str, tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(text)
    with pytest.raises(InvalidSpec) as caught:
        login(file)
    assert str(file) in str(caught.value)
    assert "hush" not in str(caught.value)


# Plugins ---------------------------------------------------------------------------------------


def test_a_plugin_gives_a_token(tmp_path: Path, plugin: Plugin) -> None:
    user = plugin.user(args=["a"], env=[{"name": "CLOUD", "value": "x"}])
    assert login(kubeconfig(tmp_path, user)).authorization == "Bearer from the cloud"
    assert [(info["apiVersion"], info["kind"]) for info in plugin.runs] == [(V1, "ExecCredential")]


def test_a_plugin_gives_a_certificate_once(tmp_path: Path, plugin: Plugin) -> None:
    plugin.answers(clientCertificateData="CRT", clientKeyData="KEY")
    here = Credentials([kubeconfig(tmp_path, plugin.user())])
    for _ in range(2):
        info = asyncio.run(here.log_in()).for_kopf()
        assert Path(str(info.certificate_path)).read_text() == "CRT"
        assert Path(str(info.private_key_path)).read_text() == "KEY"
        assert info.token is None
    assert len(plugin.runs) == 1


def test_a_plugin_runs_once_until_its_credentials_expire(tmp_path: Path, plugin: Plugin) -> None:
    now = datetime.now(UTC)
    here = Credentials([kubeconfig(tmp_path, plugin.user())])

    def token() -> str:
        return asyncio.run(here.log_in()).authorization

    plugin.answers(token="expired", expires=now - timedelta(seconds=1))
    assert token() == "Bearer expired"
    plugin.answers(token="good", expires=now + timedelta(hours=1))
    assert token() == "Bearer good"
    plugin.answers(token="unused")
    assert token() == "Bearer good"
    assert len(plugin.runs) == 2
    # Another plugin, or other arguments, are other credentials.
    kubeconfig(tmp_path, plugin.user(args=["--other"]))
    assert token() == "Bearer unused"


def test_refused_credentials_are_replaced_once_for_all_clients(
    tmp_path: Path, plugin: Plugin
) -> None:
    here = Credentials([kubeconfig(tmp_path, plugin.user())])

    async def test() -> None:
        first, same = await asyncio.gather(here.log_in(), here.log_in())
        assert first.answer is same.answer
        plugin.answers(token="second")
        # Both clients are refused; whichever comes second gets what the first one was given.
        found = [await here.log_in(refused) for refused in (first, same)]
        assert [item.authorization for item in found] == ["Bearer second"] * 2

    asyncio.run(test())
    assert len(plugin.runs) == 2


def test_kopf_is_given_others_when_it_asks_again(tmp_path: Path, plugin: Plugin) -> None:
    here = Credentials([kubeconfig(tmp_path, plugin.user())])

    async def test() -> None:
        login = login_handler(here.log_in)
        ours = await here.log_in()
        assert (await login()).token == "from the cloud"
        plugin.answers(token="second")
        assert (await login()).token == "second"
        assert (await here.log_in(ours)).authorization == "Bearer second"

    asyncio.run(test())
    assert len(plugin.runs) == 2


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo hush >&2; exit 3", "exit code 3"),
        ("echo hush", "not an ExecCredential"),
        (f'echo \'{{"apiVersion":"{V1}","kind":"ExecCredential"}}\'', "a token or"),
        (f'echo \'{{"apiVersion":"{V1}","kind":"ExecCredential","status":"hush"}}\'', "not an"),
        (f'echo \'{{"apiVersion":"{V1}","kind":"x","status":{{"hush":1}}}}\'', "a token or"),
        ('echo \'{"apiVersion":"v0","status":{"token":"hush"}}\'', V1),
    ],
)
def test_a_plugin_that_fails_is_an_error_without_what_it_printed(
    script: str, words: str, tmp_path: Path, plugin: Plugin, caplog: pytest.LogCaptureFixture
) -> None:
    plugin.program.write_text(f"#!/bin/sh\n{script}\n")
    with pytest.raises(AccessDenied, match="plugin") as caught:
        login(kubeconfig(tmp_path, plugin.user()))
    assert words in str(caught.value)
    assert "hush" not in str(caught.value) + caplog.text


def test_a_plugin_that_is_not_there(tmp_path: Path, plugin: Plugin) -> None:
    with pytest.raises(AccessDenied, match="cannot be run"):
        login(kubeconfig(tmp_path, plugin.user(command="no-such-plugin")))


def test_a_plugin_that_hangs_is_ended(
    tmp_path: Path, plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = tmp_path / "pid"
    os.mkfifo(mine)
    plugin.program.write_text(f"#!/bin/sh\necho $$ >{mine}\nexec tail -f /dev/null\n")
    here = Credentials([kubeconfig(tmp_path, plugin.user())])

    async def test() -> None:
        task = asyncio.create_task(here.log_in())
        process = int(await asyncio.to_thread(mine.read_text))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)
        monkeypatch.setattr(credentials, "_PLUGIN_TIMEOUT_S", 0.01)
        with pytest.raises(AccessDenied, match="TimeoutError"):
            await here.log_in()

    asyncio.run(test())


@pytest.mark.parametrize("command", ["bin/plugin", "./bin/plugin", "../{}/bin/plugin"])
def test_a_plugins_path_is_relative_to_the_kubeconfig(
    command: str, tmp_path: Path, plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    user = plugin.user(command=command.format(tmp_path.name))
    file = kubeconfig(tmp_path, user)
    monkeypatch.chdir(elsewhere)
    assert login(file).authorization == "Bearer from the cloud"
    monkeypatch.chdir(tmp_path)
    assert login(Path("config")).authorization == "Bearer from the cloud"


def test_a_plugins_name_is_looked_for_in_the_path(
    tmp_path: Path, plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = kubeconfig(tmp_path, plugin.user(command="plugin"))
    monkeypatch.chdir(plugin.program.parent)
    with pytest.raises(AccessDenied, match="cannot be run"):
        login(file)
    monkeypatch.setenv("PATH", str(plugin.program.parent), prepend=":")
    assert login(file).authorization == "Bearer from the cloud"


@pytest.mark.parametrize(
    ("paths", "folder", "command", "found"),
    [
        (posixpath, "/home/j/.kube", "aws", "aws"),
        (posixpath, "/home/j/.kube", "./bin/aws", "/home/j/.kube/bin/aws"),
        (posixpath, "/home/j/.kube", "/usr/bin/aws", "/usr/bin/aws"),
        (posixpath, "/home/j/.kube", r".\aws.exe", r".\aws.exe"),
        (ntpath, r"C:\Users\j\.kube", "aws.exe", "aws.exe"),
        (ntpath, r"C:\Users\j\.kube", r"..\bin\aws.exe", r"C:\Users\j\bin\aws.exe"),
        (ntpath, r"C:\Users\j\.kube", r"D:\aws\aws.exe", r"D:\aws\aws.exe"),
        (ntpath, r"C:\Users\j\.kube", r"\\share\bin\aws.exe", r"\\share\bin\aws.exe"),
        (ntpath, r"C:\Users\j\.kube", "bin/aws.exe", "bin/aws.exe"),
    ],
)
def test_commands_are_resolved_as_kubectl_does(
    paths: Any, folder: str, command: str, found: str
) -> None:
    assert absolute_command(command, folder, paths) == found


def test_paths_of_windows() -> None:
    assert absolute(r"keys\ca.crt", r"C:\k", ntpath) == r"C:\k\keys\ca.crt"
    assert absolute("keys/ca.crt", r"C:\k", ntpath) == r"C:\k\keys\ca.crt"
    assert absolute(r"D:\ca.crt", r"C:\k", ntpath) == r"D:\ca.crt"


# The pod ---------------------------------------------------------------------------------------


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a pod's service account."""
    for name, text in (("token", "first"), ("ca.crt", "CA"), ("namespace", "lake\n")):
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(credentials, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(credentials, "_NAMESPACE_FILE", tmp_path / "namespace")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    return tmp_path


def test_a_pod_is_its_service_account(pod: Path) -> None:
    here = Credentials()
    found = asyncio.run(here.log_in())
    info = found.for_kopf()
    assert (info.server, info.token) == ("https://[fd00::1]:443", "first")
    assert (info.ca_path, found.namespace) == (str(pod / "ca.crt"), "lake")
    # Tokens are rotated in their file.
    (pod / "token").write_text("second")
    assert asyncio.run(here.log_in(found)).for_kopf().token == "second"


def test_a_pods_token_is_read_again_after_a_minute(
    pod: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = asyncio.run(Credentials().log_in()).configuration
    (pod / "token").write_text("second")

    def header() -> str:
        return str(asyncio.run(found.auth_settings())[AUTHORIZATION]["value"])

    assert header() == "bearer first"

    class Later(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Any:
            return datetime.now(tz) + timedelta(seconds=61)

    clock = SimpleNamespace(datetime=Later, timedelta=timedelta)
    monkeypatch.setattr(incluster_config, "datetime", clock)
    assert header() == "bearer second"


def test_a_kubeconfig_that_is_named_comes_before_the_pod(pod: Path, tmp_path: Path) -> None:
    assert login(kubeconfig(tmp_path, {"token": "mine"})).authorization == "Bearer mine"


@pytest.mark.parametrize("break_it", [lambda pod: (pod / "token").write_text(""),
                                      lambda pod: (pod / "ca.crt").unlink()])  # fmt: skip
def test_a_broken_service_account(pod: Path, break_it: Callable[[Path], object]) -> None:
    break_it(pod)
    with pytest.raises(TandemError, match="service account"):
        asyncio.run(Credentials().log_in())


# A real API server -----------------------------------------------------------------------------


def test_a_real_api_server_refuses_and_accepts_a_plugins_token(
    cluster: Cluster, tmp_path: Path, plugin: Plugin
) -> None:
    """Two clients with one login, whose plugin first gives a token that has been revoked."""
    config = yaml.safe_load(cluster.kubeconfig.read_text())
    real = config["users"][0]["user"].pop("token")
    config["users"][0]["user"] = plugin.user(command="bin/plugin")
    file = tmp_path / "config"
    file.write_text(yaml.safe_dump(config))
    plugin.answers(token="revoked", expires=datetime.now(UTC) + timedelta(hours=1))
    tables = path("LakeTable", cluster.namespace("plugin"))

    async def test() -> None:
        here = Credentials([file])
        async with Api(here.log_in) as one, Api(here.log_in) as two:
            assert await here.log_in()
            plugin.answers(token=real, expires=datetime.now(UTC) + timedelta(hours=1))
            assert (await one.list(tables))["items"] == []
            assert (await two.list(tables))["items"] == []
            await one.close()
            assert (await one.list(tables))["items"] == []

    asyncio.run(test())
    assert len(plugin.runs) == 2
