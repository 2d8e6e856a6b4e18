"""The real parts of a Kubernetes cluster as processes of this machine: etcd, the API server and
the controller manager, as `tools/build-kubernetes.sh` builds them.

There is no kubelet and no scheduler: pods stay as they were created, and who wants one to end
says so in its status. Everything else is the real thing: schemas, RBAC, tokens of service
accounts, watches, garbage collection. Needs only Python's standard library and writes only below
the folder it is given. Every process dies with the one that started it, however that ends.
"""

from __future__ import annotations

import base64
import json
import os
import random
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

REPOSITORY = Path(__file__).resolve().parents[1]
READY_WITHIN_S = 90.0
_POLL_S = 0.02

CONTROLLERS = ("garbage-collector-controller", "namespace-controller", "serviceaccount-controller")

# Asks the kernel to kill what it becomes when its parent ends, and ends if that was before.
_TIED = """
import ctypes, os, signal, sys
libc = ctypes.CDLL(None)
if hasattr(libc, "prctl"):
    libc.prctl(1, signal.SIGKILL, 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    sys.exit("its parent has ended")
os.execv(sys.argv[2], sys.argv[2:])
"""
# To the kernel a parent is a thread. This one lives as long as the process does; one of a test's
# or a server's would take with it what it started.
_spawner = ThreadPoolExecutor(1, thread_name_prefix="spawner")


class PartFailed(RuntimeError):
    """A part did not start, or ended by itself; has the end of its log."""


@cache
def built(*parts: str) -> Path:
    """The cache with these parts in it (see `tools/build-kubernetes.sh`), built where missing."""
    script = str(REPOSITORY / "tools" / "build-kubernetes.sh")
    done = subprocess.run([script, *parts], stdout=subprocess.PIPE, check=True, text=True)
    return Path(done.stdout.strip())


def free_ports(count: int) -> list[int]:
    """Loopback ports that nobody listens on, below those that systems give to outgoing
    connections: a part that is restarted must find its port free."""
    found: list[int] = []
    while len(found) < count:
        port = random.randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


class KubectlFailed(RuntimeError):
    """kubectl ended with an error; `stderr` has what it said."""

    def __init__(self, arguments: Sequence[str], stderr: str) -> None:
        super().__init__(f"kubectl {' '.join(arguments)}: {stderr.strip()}")
        self.stderr = stderr


class Part:
    """One process with its log. `start` again is a restart: same ports, same data."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        folder: Path,
        is_ready: Callable[[], bool],
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._command = list(command)
        self._is_ready = is_ready
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        if self._process is None:
            raise PartFailed(f"{self.name} is not running")
        return self._process.pid

    def launch(self) -> None:
        """Start it without waiting until it is ready."""
        if self._process is not None and self._process.poll() is None:
            raise PartFailed(f"{self.name} is running already")
        with self.log.open("ab") as output:
            self._process = _spawner.submit(
                subprocess.Popen,
                [sys.executable, "-I", "-S", "-c", _TIED, str(os.getpid()), *self._command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            ).result()

    def start(self) -> None:
        """Start it and wait until it is ready."""
        self.launch()
        self.wait_until_ready()

    def wait_until_ready(self, within_s: float = READY_WITHIN_S) -> None:
        pause = threading.Event()
        for _ in range(int(within_s / _POLL_S)):
            if self._process is None or self._process.poll() is not None:
                raise PartFailed(f"{self.name} has ended: {self.tail()}")
            if self._is_ready():
                return
            pause.wait(_POLL_S)
        raise PartFailed(f"{self.name} is not ready after {within_s} s: {self.tail()}")

    def kill(self) -> None:
        """SIGKILL: no time to say goodbye, to its data or to its clients."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self) -> None:
        """SIGSTOP: it answers nothing, and its connections stay open."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT, after `stop`."""
        os.kill(self.pid, signal.SIGCONT)

    def restart(self) -> None:
        """Kill it if it runs; start it with the same ports and data, and wait until ready."""
        self.kill()
        self.start()

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-2000:] if self.log.exists() else ""


class EtcdMember(Part):
    """One member of an etcd cluster."""

    def __init__(self, name: str, command: Sequence[str], folder: Path, port: int) -> None:
        self.endpoint = f"127.0.0.1:{port}"
        """Where its clients connect to: host:port, without TLS."""
        self.data = folder / f"{name}.data"
        super().__init__(name, [*command, "--data-dir", str(self.data)], folder, self._healthy)

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.endpoint}/health", timeout=2) as answer:
                return bool(json.load(answer).get("health") == "true")
        except (OSError, ValueError):
            return False

    def wipe(self) -> None:
        """Kill it and remove its data."""
        self.kill()
        shutil.rmtree(self.data, ignore_errors=True)


@dataclass
class Etcd:
    """Members that form one cluster. Nothing is synced to the disk: a process may be killed,
    a machine may not."""

    members: list[EtcdMember]

    @property
    def endpoints(self) -> tuple[str, ...]:
        return tuple(member.endpoint for member in self.members)

    def start(self) -> None:
        for member in self.members:
            member.launch()
        for member in self.members:
            member.wait_until_ready()

    def kill(self) -> None:
        for member in self.members:
            member.kill()


def etcd(folder: Path, members: int = 1, arguments: Sequence[str] = ()) -> Etcd:
    """An etcd cluster that is not started yet; `arguments` go to every member."""
    program = str(built("etcd") / "bin" / "etcd")
    ports = free_ports(2 * members)
    clients, peers = ports[:members], ports[members:]
    names = [f"etcd-{number}" if members > 1 else "etcd" for number in range(members)]
    everybody = ",".join(
        f"{name}=http://127.0.0.1:{peer}" for name, peer in zip(names, peers, strict=True)
    )
    found = []
    for name, client, peer in zip(names, clients, peers, strict=True):
        command = [
            program,
            f"--name={name}",
            f"--listen-client-urls=http://127.0.0.1:{client}",
            f"--advertise-client-urls=http://127.0.0.1:{client}",
            f"--listen-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
            f"--initial-cluster={everybody}",
            f"--initial-cluster-token={ports[0]}",
            "--log-level=warn",
            "--unsafe-no-fsync",
            *arguments,
        ]
        found.append(EtcdMember(name, command, folder, client))
    return Etcd(found)


class ApiRefused(RuntimeError):
    """The API server answered with an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


@dataclass(frozen=True)
class Access:
    """Somebody's way to the API server, as a kubeconfig file has it."""

    server: str
    authority: str = field(repr=False)
    token: str = field(repr=False)

    def write(self, path: Path) -> Path:
        """As a kubeconfig file that only its owner reads."""
        authority = base64.b64encode(self.authority.encode()).decode()
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "parts",
                    "cluster": {"server": self.server, "certificate-authority-data": authority},
                }
            ],
            "users": [{"name": "user", "user": {"token": self.token}}],
            "contexts": [{"name": "parts", "context": {"cluster": "parts", "user": "user"}}],
            "current-context": "parts",
        }
        path.touch(mode=0o600)
        path.write_text(json.dumps(config, indent=1))
        return path

    @classmethod
    def read(cls, path: Path) -> Access:
        """What `write` wrote."""
        config = json.loads(path.read_text())
        cluster = config["clusters"][0]["cluster"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        return cls(cluster["server"], authority, config["users"][0]["user"]["token"])

    def request(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        content_type: str = "application/json",
        timeout_s: float = 30,
    ) -> Any:
        """One call; the answer's JSON. `path` is what follows the server's name.

        Raises ApiRefused for what the server answers with an error, OSError if it does not.
        """
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.server}{path}", data=data, method=method)
        request.add_header("Authorization", f"Bearer {self.token}")
        request.add_header("Content-Type", content_type)
        trusted = ssl.create_default_context(cadata=self.authority)
        try:
            with urllib.request.urlopen(request, timeout=timeout_s, context=trusted) as answer:
                text = answer.read()
        except HTTPError as error:
            with error:
                raise ApiRefused(error.code, _message(error.read())) from None
        return json.loads(text) if text.startswith((b"{", b"[")) else text.decode()

    def of_service_account(self, namespace: str, name: str) -> Access:
        """What a pod of that service account would have: a token for a day."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        wanted = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"expirationSeconds": 86_400},
        }
        answer = self.request("POST", path, wanted)
        return Access(self.server, self.authority, answer["status"]["token"])


def _message(text: bytes) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text.decode(errors="replace")


class ControlPlane:
    """An API server and a controller manager on top of an etcd that runs."""

    def __init__(self, folder: Path, etcd_endpoint: str) -> None:
        self.folder = folder
        self._bin = built("kubernetes") / "bin"
        [port] = free_ports(1)
        self.server = f"https://127.0.0.1:{port}"
        self.audit_log = folder / "audit.log"
        """One JSON object for every write that the API server has answered."""
        self._secrets = folder / "secrets"
        self._secrets.mkdir(mode=0o700)
        self._token = secrets.token_hex(16)
        self.kubeconfig = folder / "admin.kubeconfig"
        self.apiserver = Part(
            "kube-apiserver", self._apiserver_command(port, etcd_endpoint), folder, self._ready
        )
        self.controllers = Part(
            "kube-controller-manager",
            [
                str(self._bin / "kube-controller-manager"),
                f"--kubeconfig={self.kubeconfig}",
                f"--controllers={','.join(CONTROLLERS)}",
                "--leader-elect=false",
                "--secure-port=0",
                "--kube-api-qps=500",
                "--kube-api-burst=1000",
            ],
            folder,
            lambda: True,
        )

    @property
    def access(self) -> Access:
        """The administrator's."""
        return Access.read(self.kubeconfig)

    def start(self, manifests: Sequence[Path] = ()) -> None:
        """Start both and apply these files and folders before the controllers look."""
        self.apiserver.start()
        if manifests:
            # By the server, since an annotation with all of the Spark operator's CRD is too big.
            files = [word for path in manifests for word in ("-f", str(path))]
            self.kubectl("apply", "--server-side", "--validate=false", *files)
            self._wait_until_served()
        self.controllers.launch()

    def _wait_until_served(self) -> None:
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        pause = threading.Event()
        for _ in range(int(READY_WITHIN_S / _POLL_S)):
            conditions = [
                crd.get("status", {}).get("conditions") or ()
                for crd in self.access.request("GET", path)["items"]
            ]
            if all({("Established", "True")} <= _states(each) for each in conditions):
                return
            pause.wait(_POLL_S)
        raise PartFailed(f"the API server does not serve all CRDs: {self.apiserver.tail()}")

    def kill(self) -> None:
        self.controllers.kill()
        self.apiserver.kill()

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        """Run kubectl as the administrator; see `kubectl` below."""
        return kubectl(self.kubeconfig, *arguments, text=text)

    def _apiserver_command(self, port: int, etcd_endpoint: str) -> list[str]:
        key, tokens = self._secrets / "accounts.key", self._secrets / "tokens.csv"
        policy = self.folder / "audit-policy.json"
        key.write_text(_signing_key())
        tokens.write_text(f"{self._token},admin,admin,system:masters\n")
        policy.write_text(json.dumps(_AUDIT_POLICY))
        return [
            str(self._bin / "kube-apiserver"),
            f"--etcd-servers=http://{etcd_endpoint}",
            "--bind-address=127.0.0.1",
            "--advertise-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--secure-port={port}",
            # The server makes a certificate of its own there, which is all that anybody trusts.
            f"--cert-dir={self._secrets}",
            "--authorization-mode=RBAC",
            f"--token-auth-file={tokens}",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-cluster-ip-range=10.0.0.0/24",
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self.audit_log}",
            "--profiling=false",
        ]

    def _ready(self) -> bool:
        certificate = self._secrets / "apiserver.crt"
        if not certificate.exists():
            return False
        try:
            access = Access(self.server, certificate.read_text(), self._token)
            access.request("GET", "/readyz", timeout_s=2)
        except (ApiRefused, URLError, OSError):
            return False
        access.write(self.kubeconfig)
        return True


def _states(conditions: Sequence[Mapping[str, str]]) -> set[tuple[str, str]]:
    return {(condition["type"], condition["status"]) for condition in conditions}


_AUDIT_POLICY: Mapping[str, object] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "omitManagedFields": True,
    "rules": [
        {"level": "None", "verbs": ["get", "list", "watch"]},
        {"level": "Metadata"},
    ],
}


def _signing_key() -> str:
    """A fresh private key on P-256 in PEM: RFC 5915's structure without the public key, which
    is optional there (and Go computes it)."""
    private = (1 + secrets.randbelow(2**255)).to_bytes(32, "big")
    der = bytes.fromhex("30310201010420") + private + bytes.fromhex("a00a06082a8648ce3d030107")
    text = base64.b64encode(der).decode()
    return f"-----BEGIN EC PRIVATE KEY-----\n{text}\n-----END EC PRIVATE KEY-----\n"


def kubectl(kubeconfig: Path, *arguments: str, text: str | None = None) -> str:
    """Run kubectl with this kubeconfig and, if given, this standard input; what it prints.

    Raises KubectlFailed, whose `stderr` says what was wrong.
    """
    program = str(built("kubernetes") / "bin" / "kubectl")
    cache = kubeconfig.parent / "kubectl"
    done = subprocess.run(
        [program, f"--kubeconfig={kubeconfig}", f"--cache-dir={cache}", *arguments],
        input=text,
        capture_output=True,
        check=False,
        text=True,
    )
    if done.returncode != 0:
        raise KubectlFailed(arguments, done.stderr)
    return done.stdout
