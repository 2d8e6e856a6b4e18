"""Keeps the parts of a cluster for a test run: a process of its own between pytest and them.

    python cluster_keeper.py FOLDER PID

Starts etcd, the API server and the controllers below FOLDER, applies the CRDs and the RBAC, and
writes `state.json` there once all is ready. Then it serves requests on FOLDER/control until the
process PID ends, however that happens; everything it started ends with it, the logs stay. So
the workers of one run can share a cluster, whichever of them asked first and ends last.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socketserver
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cluster_parts import ControlPlane, manifests
from cluster_processes import Part, PartFailed, etcd

ACTIONS = ("kill", "start", "restart", "stop", "resume")


def main(folder: Path, watched: int) -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    try:
        keep(folder, _end_of(watched))
    finally:
        # Waiting processes must not wait for ever; the error is in this process's log.
        if not (folder / "state.json").exists():
            _write(folder, {"error": "see keeper.log"})


def _end_of(watched: int) -> Callable[[], None]:
    """Call it to wait until that process has ended."""
    if hasattr(os, "pidfd_open"):
        # Opened before anything slow: later the number may be another process's.
        handle = os.pidfd_open(watched)

        def wait() -> None:
            select.select([handle], [], [])

    else:

        def wait() -> None:
            pause = threading.Event()
            with suppress(ProcessLookupError):
                while True:
                    os.kill(watched, 0)
                    pause.wait(0.2)

    return wait


def keep(folder: Path, wait_for_end: Callable[[], None]) -> None:
    """Start everything, serve until then, and end everything."""
    store = etcd(folder)
    plane = ControlPlane(folder, store.endpoints[0])
    try:
        store.start()
        plane.start(manifests())
        plane.access.of_service_account("tandem-system", "tandem-operator").write(
            folder / "operator.kubeconfig"
        )
        plane.access.of_service_account("tandem-system", "tandem-dev").write(
            folder / "dev.kubeconfig"
        )
        parts: list[Part] = [*store.members, plane.apiserver, plane.controllers]
        with socketserver.ThreadingUnixStreamServer(
            str(folder / "control"), _handler({part.name: part for part in parts})
        ) as server:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, daemon=True).start()
            _write(folder, {"etcd": store.endpoints[0], "audit": str(plane.audit_log)})
            wait_for_end()
            server.shutdown()
    finally:
        plane.kill()
        store.kill()
        for member in store.members:
            shutil.rmtree(member.data, ignore_errors=True)


def _handler(parts: dict[str, Part]) -> type[socketserver.StreamRequestHandler]:
    one_at_a_time = threading.Lock()

    class Handler(socketserver.StreamRequestHandler):
        """One line `ACTION PART`, answered with `ok` or with what was wrong."""

        def handle(self) -> None:
            action, _, name = self.rfile.readline().decode().strip().partition(" ")
            answer = f"there is no {action} of {name}"
            if action in ACTIONS and name in parts:
                try:
                    with one_at_a_time:
                        getattr(parts[name], action)()
                    answer = "ok"
                except PartFailed as error:
                    answer = str(error)
            self.wfile.write(answer.encode())

    return Handler


def _write(folder: Path, state: dict[str, str]) -> None:
    fresh = folder / "state.json.new"
    fresh.write_text(json.dumps(state))
    fresh.rename(folder / "state.json")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
