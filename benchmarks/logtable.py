"""A merge-on-read table for measurements, and operations on it with jobs in this process."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

KEY, ORDERING = "k", "at"
COLUMNS: Final = 10


def rows(keys: Iterable[int], at: int) -> Any:
    """Rows of ten columns, `at` in the ordering column and in `c0`."""
    import pyarrow as pa

    chosen = list(keys)
    same = [at] * len(chosen)
    columns = {KEY: pa.array(chosen, pa.int64()), ORDERING: pa.array(same, pa.int64())}
    columns["c0"] = pa.array(same, pa.int64())
    for number in range(1, COLUMNS - len(columns) + 1):
        values = [(key * 7919 + at * 104_729 + number) % 1_000_003 for key in chosen]
        columns[f"c{number}"] = pa.array(values, pa.int64())
    return pa.table(columns)


class Slow:
    """A store of whose calls each takes longer, as over a network."""

    def __init__(self, store: Any, request_ms: int) -> None:
        self._store, self._seconds = store, request_ms / 1e3

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def slowly(*arguments: Any, **named: Any) -> Any:
            time.sleep(self._seconds)
            return found(*arguments, **named)

        return slowly


def opened(folder: Path, request_ms: int = 0) -> Any:
    """The log of the table in a folder."""
    from tandem.delta.log.delta_log import DeltaLog
    from tandem.mergelog import MergeLog
    from tandem.storage import open_store

    store: Any = open_store(str(folder))
    return MergeLog(DeltaLog(Slow(store, request_ms) if request_ms else store))


def written_bytes(folder: Path) -> int:
    """Of data files, blocks and deletion vectors; logs and what jobs report are left out."""
    return sum(
        file.stat().st_size
        for file in folder.rglob("*")
        if file.suffix in (".parquet", ".bin") and "_delta_log" not in file.parts
    )


class LogTable:
    def __init__(self, folder: Path, request_ms: int = 0) -> None:
        from tandem.mergelog import LogWriter

        self.folder, self.request_ms = folder, request_ms
        self.log = opened(folder, request_ms)
        self._writer = LogWriter(self.log, "bench", pause=lambda _: None)
        self._batches = self._operations = 0

    @classmethod
    def made(cls, folder: Path, keys: int, *, request_ms: int = 0) -> LogTable:
        """A table of `keys` rows, in files of at most 50,000, with an empty log."""
        from deltalake import write_deltalake

        from tandem.mergelog import LogSettings, ensure_log

        vectors = {"delta.enableDeletionVectors": "true"}
        for first in range(0, keys, 50_000):
            part = rows(range(first, min(first + 50_000, keys)), -1)
            write_deltalake(str(folder), part, mode="append", configuration=vectors)
        settings = LogSettings((KEY,), ORDERING)
        ensure_log(opened(folder), settings, now_ms=0, nonce="bench")
        return cls(folder, request_ms)

    def append(self, upserts: Any) -> None:
        self._writer.append(upserts, batch=self._batches)
        self._batches += 1

    def read(self) -> Any:
        from tandem.mergelog import MergedView

        return MergedView.open(self.log).scan().read_all()

    def live_blocks(self) -> int:
        from tandem.mergelog import MergedView

        return len(MergedView.open(self.log).state.live)

    def purge_half_dead(self) -> None:
        """Rewrite the segments of the base table of which more than half of the rows are deleted.

        Raises: WrongResult.
        """
        from tandem.timeline.segments import segments

        found = [
            segment.name
            for segment in segments(self.log.base.snapshot().files)
            if 2 * segment.deleted_rows > (segment.rows or 0)
        ]
        if found:
            self._run("SegmentRewrite", {"segments": found, "rewrite": {"purgeDeleted": True}})

    def serve(self, service: str) -> Any:
        """A LogCompaction by its strategy, or `LogMerge`. Raises: WrongResult."""
        if service == "LogMerge":
            return self._run("TableCompaction", {"type": service})
        return self._run("LogCompaction", {"strategy": service})

    def _run(self, kind: str, spec: dict[str, Any]) -> Any:
        from benchmarks.harness import WrongResult
        from support.jobs.quick_jobs import QuickJobs
        from tandem.operations.execute import ExecutionOptions, finish, open_session
        from tandem.operations.model import Table
        from tandem.operations.ports import Ports
        from tandem.operations.session.job_control import FileJobs
        from tandem.spec.resources import OPERATIONS
        from tandem.spec.status import Phase

        self._operations += 1
        operation = OPERATIONS[kind].model_validate(
            {
                "apiVersion": "tandem.dev/v1alpha1",
                "kind": kind,
                "metadata": {"name": f"operation-{self._operations}"},
                "spec": {"tableRef": {"name": "bench"}, **spec},
            }
        )
        ports = Ports(jobs=FileJobs(QuickJobs()))
        table = Table(self.log.base.store, self.log.base, "LakeTable/bench")
        session = open_session(operation, table, ports, ExecutionOptions(poll_ms=1))
        status = finish(session, operation, ports)
        if status.phase not in (Phase.SUCCEEDED, Phase.SUPERSEDED):
            raise WrongResult(f"{kind} {spec}: {status.conditions}")
        return status
