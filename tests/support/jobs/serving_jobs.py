"""`HeldJobs` that also run index servers: the real program in a thread, without Spark."""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, field

from support.cluster.operator_thread import HeldJobs
from tandem.errors import TandemError
from tandem.index.server.messages import read
from tandem.jobs.formats import INDEX_SERVER_APP
from tandem.jobs.runner import JobPhase, JobRequest, JobStatus
from tandem.spark.jobs.index_server import serve

_END_S = 60.0


@dataclass
class _Server:
    request: JobRequest
    stop: threading.Event = field(default_factory=threading.Event)
    ready: threading.Event = field(default_factory=threading.Event)
    error: TandemError | None = None
    thread: threading.Thread | None = None

    def run(self) -> None:
        try:
            serve(
                read(self.request.request),
                self.stop,
                dict(self.request.environ),
                ready=lambda _: self.ready.set(),
            )
        except TandemError as error:
            self.error = error


class ServingJobs(HeldJobs):
    """Attributes:
    servers: all that were started, by the name of their job.
    """

    def __init__(self) -> None:
        super().__init__()
        self.servers: dict[str, _Server] = {}

    def start(self, request: JobRequest) -> None:
        if request.app != INDEX_SERVER_APP:
            super().start(request)
            return
        server = _Server(request)
        self.servers[request.name] = server
        server.thread = threading.Thread(target=server.run, name=request.name, daemon=True)
        server.thread.start()

    def status(self, name: str) -> JobStatus:
        server = self.servers.get(name)
        if server is None:
            return super().status(name)
        assert server.thread is not None
        if server.thread.is_alive():
            return JobStatus(JobPhase.RUNNING)
        return JobStatus(JobPhase.FAILED, f"ended with exit code 1: {server.error}")

    def stop(self, name: str) -> None:
        server = self.servers.get(name)
        if server is None:
            super().stop(name)
            return
        self.stopped.append(name)
        self.end(name)

    def end(self, name: str) -> None:
        """As SIGTERM does."""
        server = self.servers[name]
        server.stop.set()
        with suppress(RuntimeError):
            assert server.thread is not None
            server.thread.join(_END_S)

    def close(self) -> None:
        for name in list(self.servers):
            self.end(name)
