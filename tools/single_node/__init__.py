"""A real Kubernetes cluster of one node on this machine, without Docker or systemd.

etcd, API server, controller manager, scheduler, kubelet, kube-proxy and CoreDNS are built from
source (`tools/build-kubernetes.sh`, `tools/build-cluster.sh`); containerd, runc and the network
plugins are Debian's. Needs root. For `make e2e`, and for experiments:

    python tools/single_node up [IMAGE.tar...]

The cluster removes everything at its end. After a kill, the next cluster removes the remains.
"""
