"""Jobs in the process of the engine, as those of the command line are: what the two say to each
other is in the memory of that process, and is lost with it, the job included."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from support.lake.memory_store import MemoryStore
from tandem.jobs.formats import Job, JobSpec, RoundRequest
from tandem.jobs.port import JobKey, JobPlace, RoundState, read_side_file
from tandem.jobs.results import JobResult, SideFileRef
from tandem.jobs.runner import JobRequest, JobRunner
from tandem.operations.session.job_control import FileJobs
from tandem.storage.store import ObjectInfo, Store

STORED = ("plan.json", "job.json", "attempt.json", "ended.json")
"""Records of an attempt that its engine stores."""


class HeldFiles:
    """A store in which the files by which the engine and some jobs speak are in memory. `held`: by
    the folder of their attempt."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.held: dict[str, MemoryStore] = {}

    @property
    def location(self) -> str:
        return self._store.location

    def _of(self, path: str) -> Store:
        if path.endswith(STORED):
            return self._store
        found = (memory for folder, memory in self.held.items() if path.startswith(f"{folder}/"))
        return next(found, self._store)

    def get(self, path: str) -> bytes:
        return self._of(path).get(path)

    def get_range(self, path: str, start: int, length: int) -> bytes:
        return self._of(path).get_range(path, start, length)

    def head(self, path: str) -> ObjectInfo:
        return self._of(path).head(path)

    def list(self, prefix: str = "", *, start_after: str = "") -> Iterator[ObjectInfo]:
        return self._of(prefix).list(prefix, start_after=start_after)

    def put(self, path: str, data: bytes) -> None:
        self._of(path).put(path, data)

    def put_if_absent(self, path: str, data: bytes) -> None:
        self._of(path).put_if_absent(path, data)

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._of(path).delete([path])

    def open_input(self, path: str) -> BinaryIO:
        return self._of(path).open_input(path)

    def open_output(self, path: str) -> BinaryIO:
        return self._of(path).open_output(path)

    def delete_prefix(self, prefix: str, *, keep: Collection[str] = ()) -> int:
        return self._of(prefix).delete_prefix(prefix, keep=keep)

    def keep(self, folder: str) -> None:
        """Store what an attempt has said, as is done after work that took long."""
        memory = self.held[folder]
        for path in memory.paths():
            self._store.put(path, memory.get(path))


@dataclass
class HeldJobs:
    """The `Jobs` of one process."""

    runner: JobRunner
    files: HeldFiles
    names: dict[str, str] = field(default_factory=dict)
    """The folders of its attempts, by the name of the job."""

    def place_for(self, operation_id: str, job: Job, input_bytes: int) -> JobPlace:  # noqa: ARG002
        return JobPlace.HERE

    def place_of(self, key: JobKey) -> JobPlace:  # noqa: ARG002
        return JobPlace.HERE

    def start(self, key: JobKey, request: JobRequest, spec: JobSpec) -> None:
        if key.name not in self.names:
            self.names[key.name] = spec.control_prefix
            self.files.held[spec.control_prefix] = MemoryStore(self.files.location)
        self._jobs.start(self._here(key), request, spec)

    def knows(self, key: JobKey) -> bool:
        return key.name in self.names

    def poll(self, key: JobKey, round_: int) -> RoundState:
        return self._jobs.poll(self._here(key), round_)

    def result(self, key: JobKey, round_: int) -> JobResult | None:
        return self._jobs.result(self._here(key), round_)

    def read(self, store: Store, ref: SideFileRef) -> bytes:  # noqa: ARG002
        return read_side_file(self.files, ref)

    def ask(self, key: JobKey, request: RoundRequest) -> RoundRequest:
        return self._jobs.ask(self._here(key), request)

    def finish(self, key: JobKey) -> None:
        self._jobs.finish(self._here(key))

    def stop(self, key: JobKey) -> None:
        self._jobs.stop(key)

    @property
    def _jobs(self) -> FileJobs:
        return FileJobs(self.runner)

    def _here(self, key: JobKey) -> JobKey:
        return replace(key, store=self.files) if key.name in self.names else key
