"""A real etcd for a test of its own, whose members can be killed, stopped and wiped.

Most tests need none: `cluster.etcd_endpoint` is one that all tests of a run share (use a prefix
of your own). This is for those that hurt it.

    with start_etcd(members=3) as etcd:
        etcd.endpoints              # ("127.0.0.1:…", …), without TLS
        etcd.members[0].kill()      # SIGKILL; also stop() and resume(): SIGSTOP, SIGCONT
        etcd.members[0].restart()   # same ports, same data; waits until it is ready
        etcd.members[0].wipe()      # kills it and removes its data
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cluster_processes import Etcd, EtcdMember, scratch
from cluster_processes import etcd as make_etcd

__all__ = ["Etcd", "EtcdMember", "start_etcd"]


@contextmanager
def start_etcd(
    members: int = 1, arguments: Sequence[str] = (), program: Path | None = None
) -> Iterator[Etcd]:
    """Run a cluster of so many members for the length of the block; all of them are ready.

    `arguments` go to every member. Built first where it is missing; `program`: another build.
    """
    with scratch("tandem-etcd-") as folder:
        etcd = make_etcd(folder, members, arguments, program)
        try:
            etcd.start()
            yield etcd
        finally:
            etcd.kill()
