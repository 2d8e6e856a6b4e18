"""A cluster of one node: its processes, started in order, and the node's death."""

from __future__ import annotations

import fcntl
import json
import secrets
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster_access import Access, ApiRefused, kubectl
from cluster_processes import REPOSITORY, Part, PartFailed, built, etcd, free_ports
from single_node import archives, leftovers, needs, settings
from single_node.certificates import Authority
from single_node.settings import GATEWAY, NODE, SERVICES, Place

RUN = Path("/run/tandem-node")
_READY_WITHIN_S = 120.0
_POLL_S = 0.1


@contextmanager
def single_node(folder: Path) -> Iterator[SingleNode]:
    """A cluster for the duration of the block, in a new folder; only one at a time on a machine.
    Removes everything at the end, and before the start the remains of a killed cluster.

    Raises: NotHere if this machine cannot be a node, PartFailed.
    """
    needs.check()
    binaries = _binaries()
    place = Place(folder.resolve(), RUN, _address(), needs.program("runc"))
    folder.parent.mkdir(parents=True, exist_ok=True)
    with Path("/run/tandem-node.lock").open("w") as mine:
        try:
            fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PartFailed("a node runs on this machine already: end that one first") from None
        needs.alone()
        proxy = str(binaries / "kube-proxy")
        leftovers.remove(place, proxy)
        node = SingleNode(place, binaries)
        try:
            node.start()
            yield node
        finally:
            node.kill()
            _keep_logs(place.folder)
            leftovers.remove(place, proxy)


class SingleNode:
    """The cluster; `single_node` makes one."""

    def __init__(self, place: Place, binaries: Path) -> None:
        self.place = place
        self.folder = place.folder
        self.kubeconfig = self.folder / "admin.kubeconfig"
        self.audit_log = self.folder / "audit.log"
        """One JSON object for every request for a Secret and every write."""
        self._bin = binaries
        self._parts: list[Part] = []
        for made in (self.folder, place.run, self.folder / "cni", self.folder / "configs"):
            made.mkdir(mode=0o700)
        place.kubelet.mkdir()
        self._authority = Authority(self.folder / "certificates")
        [self._port] = free_ports(1)
        self._tokens = {
            user: secrets.token_hex(16)
            for user in (
                "admin",
                "coredns",
                "system:kube-controller-manager",
                "system:kube-proxy",
                "system:kube-scheduler",
                f"system:node:{NODE}",
            )
        }
        self._store = etcd(self.folder)
        self._containerd = self._make_containerd()
        self._kubelet = self._make_kubelet()

    @property
    def access(self) -> Access:
        """The administrator's."""
        return Access.read(self.kubeconfig)

    def kubectl(self, *arguments: str, text: str | None = None) -> str:
        """As the administrator; see `cluster_access.kubectl`."""
        return kubectl(self.kubeconfig, *arguments, text=text)

    def start(self) -> None:
        """Start everything, and wait until the node is ready for pods."""
        self._containerd.launch()
        self._store.start()
        self._start(self._make_apiserver())
        _bridge()
        self.kubectl("apply", "-f", "-", text=settings.NAMES_ROLE)
        for part in (*self._make_controllers(), self._kubelet, self._make_proxy()):
            self._parts.append(part)
            part.launch()
        self._containerd.wait_until_ready()
        pause = archives.of_programs(
            self.folder / "pause.tar",
            settings.PAUSE,
            {"/bin/busybox": Path(needs.program("busybox"))},
            ["/bin/busybox", "sleep", "infinity"],
        )
        self.load(pause)
        self._start(self._make_names())
        self._until(self._node_is_ready, "the node is not ready")
        self._until(self._has_account, "there is no service account for pods")

    def load(self, *images: Path) -> None:
        """Give the node these images (archives as `docker save` writes them)."""
        for archive in images:
            self.ctr("images", "import", str(archive))

    def ctr(self, *arguments: str) -> str:
        """Run containerd's own client on Kubernetes' containers; returns its output."""
        command = [needs.program("ctr"), "-a", str(self.place.socket), "-n", "k8s.io"]
        done = subprocess.run([*command, *arguments], capture_output=True, check=False, text=True)
        if done.returncode != 0:
            raise PartFailed(f"ctr {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def kill_node(self) -> None:
        """Kill kubelet, containerd and every container at once, without a shutdown."""
        self._kubelet.kill()
        self._containerd.kill()
        leftovers.kill_containers(self.place)

    def start_node(self) -> None:
        """After `kill_node`: the same disks, without the processes."""
        self._containerd.start()
        self._kubelet.launch()

    def kill(self) -> None:
        """Stop all processes. `leftovers.remove` removes containers."""
        for part in reversed(self._parts):
            part.kill()
        self._containerd.kill()
        self._store.kill()

    def resident(self) -> Mapping[str, int]:
        """Bytes of memory that each part holds."""
        return {part.name: _resident(part.pid) for part in (*self._parts, self._containerd)}

    def _start(self, part: Part) -> None:
        self._parts.append(part)
        part.start()

    def _part(self, name: str, arguments: Sequence[str], ready: Any = None) -> Part:
        return Part(name, [str(self._bin / name), *arguments], self.folder, ready or _at_once)

    def _as(self, user: str) -> Path:
        """A kubeconfig for that user."""
        authority = self._authority.certificate.read_text()
        path = self.folder / "configs" / user.replace(":", "-")
        access = Access(f"https://127.0.0.1:{self._port}", authority, self._tokens[user])
        return access.write(path)

    def _make_apiserver(self) -> Part:
        folder, sign = self._authority.folder, self._authority.sign
        names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost")
        addresses = ("127.0.0.1", settings.FIRST_SERVICE, self.place.address)
        certificate, key = sign(
            "apiserver",
            "/CN=kube-apiserver",
            [*(f"DNS:{name}" for name in names), *(f"IP:{address}" for address in addresses)],
        )
        ours, our_key = sign("to-kubelet", "/O=system:masters/CN=kube-apiserver")
        private, public = self._authority.signing_key("accounts")
        tokens, policy = self.folder / "configs" / "tokens.csv", self.folder / "audit-policy.json"
        tokens.write_text(settings.tokens(self._tokens))
        policy.write_text(json.dumps(settings.AUDIT_POLICY))
        return self._part(
            "kube-apiserver",
            [
                f"--etcd-servers=http://{self._store.endpoints[0]}",
                f"--secure-port={self._port}",
                f"--advertise-address={self.place.address}",
                f"--tls-cert-file={certificate}",
                f"--tls-private-key-file={key}",
                f"--client-ca-file={self._authority.certificate}",
                f"--token-auth-file={tokens}",
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={public}",
                f"--service-account-signing-key-file={private}",
                f"--service-cluster-ip-range={SERVICES}",
                f"--kubelet-client-certificate={ours}",
                f"--kubelet-client-key={our_key}",
                f"--kubelet-certificate-authority={self._authority.certificate}",
                "--kubelet-preferred-address-types=InternalIP",
                f"--cert-dir={folder}",
                f"--audit-policy-file={policy}",
                f"--audit-log-path={self.audit_log}",
            ],
            self._is_served,
        )

    def _is_served(self) -> bool:
        authority = self._authority.certificate.read_text()
        access = Access(f"https://127.0.0.1:{self._port}", authority, self._tokens["admin"])
        try:
            access.request("GET", "/readyz", timeout_s=2)
        except (ApiRefused, OSError):
            return False
        access.write(self.kubeconfig)
        return True

    def _make_controllers(self) -> list[Part]:
        common = ["--leader-elect=false", "--secure-port=0"]
        accounts = self._authority.folder / "accounts.key"
        return [
            self._part(
                "kube-controller-manager",
                [
                    *common,
                    f"--kubeconfig={self._as('system:kube-controller-manager')}",
                    "--use-service-account-credentials",
                    f"--service-account-private-key-file={accounts}",
                    f"--root-ca-file={self._authority.certificate}",
                    # A killed node is back before the controllers give it up.
                    "--node-monitor-grace-period=40s",
                ],
            ),
            self._part(
                "kube-scheduler", [*common, f"--kubeconfig={self._as('system:kube-scheduler')}"]
            ),
        ]

    def _make_containerd(self) -> Part:
        config = self.folder / "containerd.toml"
        config.write_text(settings.containerd(self.place))
        (self.folder / "cni" / "10-tandem.conflist").write_text(settings.network(self.place))
        command = [needs.program("containerd"), "-c", str(config)]
        return Part("containerd", command, self.folder, self._containers_are_served)

    def _containers_are_served(self) -> bool:
        try:
            self.ctr("version")
        except PartFailed:
            return False
        return True

    def _make_kubelet(self) -> Part:
        [port] = free_ports(1)
        certificate, key = self._authority.sign(
            "kubelet",
            f"/O=system:nodes/CN=system:node:{NODE}",
            [f"DNS:{NODE}", f"IP:{self.place.address}"],
        )
        (self.folder / "resolv.conf").write_text(f"nameserver {GATEWAY}\n")
        config = self.folder / "kubelet.json"
        config.write_text(
            settings.kubelet(self.place, port, self._authority.certificate, certificate, key)
        )
        return self._part(
            "kubelet",
            [
                f"--config={config}",
                f"--kubeconfig={self._as(f'system:node:{NODE}')}",
                f"--root-dir={self.place.kubelet}",
                f"--hostname-override={NODE}",
                f"--node-ip={self.place.address}",
            ],
        )

    def _make_proxy(self) -> Part:
        health, metrics = free_ports(2)
        return self._part(
            "kube-proxy",
            [
                f"--kubeconfig={self._as('system:kube-proxy')}",
                "--proxy-mode=iptables",
                f"--hostname-override={NODE}",
                f"--cluster-cidr={settings.PODS}",
                # Responses between two pods of one bridge then come back through the node.
                "--masquerade-all",
                f"--healthz-bind-address=127.0.0.1:{health}",
                f"--metrics-bind-address=127.0.0.1:{metrics}",
                "--conntrack-max-per-core=0",
                "--oom-score-adj=0",
            ],
        )

    def _make_names(self) -> Part:
        config = self.folder / "Corefile"
        config.write_text(settings.names(self._as("coredns")))
        return self._part("coredns", ["-conf", str(config)])

    def _node_is_ready(self) -> bool:
        try:
            node = self.access.request("GET", f"/api/v1/nodes/{NODE}")
        except ApiRefused as error:
            if error.status == 404:
                return False  # kubelet has not come yet
            raise
        conditions = node.get("status", {}).get("conditions", ())
        return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)

    def _has_account(self) -> bool:
        accounts = self.access.request("GET", "/api/v1/namespaces/default/serviceaccounts")
        return bool(accounts["items"])

    def _until(self, holds: Any, otherwise: str) -> None:
        pause = threading.Event()
        for _ in range(int(_READY_WITHIN_S / _POLL_S)):
            for part in self._parts:
                part.check()
            if holds():
                return
            pause.wait(_POLL_S)
        raise PartFailed(f"{otherwise}: {self._kubelet.tail()}")


def _binaries() -> Path:
    """Builds missing programs."""
    cache = built()
    script = str(REPOSITORY / "tools" / "build-cluster.sh")
    subprocess.run([script, "kubernetes-node", "coredns"], stdout=subprocess.PIPE, check=True)
    return cache / "bin"


def _address() -> str:
    """This machine's own address, as pods can reach it."""
    done = subprocess.run(
        [needs.program("ip"), "-json", "-4", "address", "show", "scope", "global", "up"],
        stdout=subprocess.PIPE,
        check=True,
    )
    for link in json.loads(done.stdout):
        kind = str(link.get("ifname", ""))
        if kind.startswith(("veth", "cni", "docker", "br-", "podman", settings.BRIDGE)):
            continue
        for address in link.get("addr_info", ()):
            return str(address["local"])
    raise needs.NotHere("this machine has no IPv4 address but its loopback's")


def _bridge() -> None:
    """The pods' bridge before there are pods: CoreDNS listens on it."""
    ip = needs.program("ip")
    for words in (
        ["link", "add", settings.BRIDGE, "type", "bridge"],
        ["address", "add", f"{GATEWAY}/24", "dev", settings.BRIDGE],
        ["link", "set", settings.BRIDGE, "up"],
    ):
        subprocess.run([ip, *words], check=True)


def _keep_logs(folder: Path) -> None:
    """Keep the parts' logs after the cluster's end; the next cluster replaces them."""
    logs = folder.with_name(f"{folder.name}-logs")
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir()
    for log in (*folder.glob("*.log"), *folder.glob("logs-of-pods/*/*/*.log")):
        name = "-".join(log.relative_to(folder).parts)
        shutil.copyfile(log, logs / name.removeprefix("logs-of-pods-"))


def _resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def _at_once() -> bool:
    return True
