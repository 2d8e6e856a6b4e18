"""The configuration files of a node's programs: addresses, folders, and minimal settings. Pure.

Only this cluster uses its networks, which differ from the defaults of Docker, podman and kind.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from single_node.needs import PLUGINS

NODE = "tandem-node"
BRIDGE = "tandem0"
GATEWAY = "10.214.40.1"
PODS = "10.214.40.0/24"
SERVICES = "10.214.41.0/24"
FIRST_SERVICE = "10.214.41.1"
"""The API server's address for pods."""
CLUSTER_DOMAIN = "cluster.local"
PAUSE = "docker.io/library/tandem-pause:1"


NAMES_ROLE = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: coredns}
rules:
- apiGroups: [""]
  resources: [services, namespaces]
  verbs: [list, watch]
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [list, watch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: coredns}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: coredns}
subjects:
- {apiGroup: rbac.authorization.k8s.io, kind: User, name: coredns}
"""
"""CoreDNS's user name at the API server."""

AUDIT_POLICY: Mapping[str, object] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "omitManagedFields": True,
    "rules": [
        {"level": "Metadata", "resources": [{"group": "", "resources": ["secrets"]}]},
        {"level": "None", "verbs": ["get", "list", "watch"]},
        {"level": "None", "users": ["system:apiserver"]},
        {"level": "Metadata"},
    ],
}
"""Logs writes, and all reads of Secrets."""


@dataclass(frozen=True)
class Place:
    """The folders of one cluster: `folder` for large files, `run` (short) for sockets and state."""

    folder: Path
    run: Path
    address: str
    """The node's, which pods reach."""
    runc: str

    @property
    def socket(self) -> Path:
        return self.run / "containerd.sock"

    @property
    def images(self) -> Path:
        return self.folder / "containerd"

    @property
    def kubelet(self) -> Path:
        return self.folder / "kubelet"


def containerd(place: Place) -> str:
    """TOML in the second version of containerd's settings, which 1.6 to 2.x read."""
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""version = 2
root = "{place.images}"
state = "{place.run}/containerd"
oom_score = 0
disabled_plugins = ["io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[grpc]
  address = "{place.socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{place.folder}/opt"
[{cri}]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true # where CAP_SYS_RESOURCE is missing, less than 0 is refused
  disable_apparmor = true
  [{cri}.containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
    [{cri}.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [{cri}.containerd.runtimes.runc.options]
        SystemdCgroup = false
        BinaryName = "{place.runc}"
  [{cri}.cni]
    bin_dir = "{PLUGINS}"
    conf_dir = "{place.folder}/cni"
"""


def network(place: Place) -> str:
    """Pods on a bridge of the node."""
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": PODS}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": str(place.run / "addresses"),
    }
    bridge = {
        "type": "bridge",
        "bridge": BRIDGE,
        "isGateway": True,
        "ipMasq": True,
        "hairpinMode": True,
        "ipam": addresses,
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "1.0.0", "name": "tandem", "plugins": [bridge, ports]})


def kubelet(place: Place, port: int, authority: Path, certificate: Path, key: Path) -> str:
    """The API server authorizes callers; kubelet creates control groups itself."""
    settings: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": place.address,
        "port": port,
        "healthzPort": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(authority)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(certificate),
        "tlsPrivateKeyFile": str(key),
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        # kube-proxy creates all necessary rules, and removes them again.
        "makeIPTablesUtilChains": False,
        "containerRuntimeEndpoint": f"unix://{place.socket}",
        "podLogsDir": str(place.folder / "logs-of-pods"),
        "volumePluginDir": str(place.folder / "volume-plugins"),
        "clusterDNS": [GATEWAY],
        "clusterDomain": CLUSTER_DOMAIN,
        "resolvConf": str(place.folder / "resolv.conf"),
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
        },
        # Never collect images: they come as archives, and cannot be pulled again.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "maxPods": 60,
        "syncFrequency": "10s",
        "nodeStatusUpdateFrequency": "5s",
    }
    return json.dumps(settings, indent=1)


def names(kubeconfig: Path) -> str:
    """CoreDNS's Corefile: the cluster's names, all others from the machine's own servers."""
    return f""".:53 {{
  bind {GATEWAY}
  errors
  kubernetes {CLUSTER_DOMAIN} in-addr.arpa {{
    kubeconfig {kubeconfig} parts
    ttl 5
  }}
  forward . /etc/resolv.conf
}}
"""


def tokens(of: dict[str, str]) -> str:
    """Tokens by user name; nodes and administrators have groups, too."""
    groups = {"admin": "system:masters", f"system:node:{NODE}": "system:nodes"}
    return "".join(
        f"{token},{user},{user}" + (f',"{groups[user]}"' if user in groups else "") + "\n"
        for user, token in of.items()
    )
