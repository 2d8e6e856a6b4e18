"""A merge-on-read table, and operations on it through the engine with jobs in this process."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import write_deltalake

from support.documents import document
from support.jobs.quick_jobs import QuickJobs
from tandem import mergelog
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.scan import scan
from tandem.jobs.runner import JobRunner
from tandem.operations.execute import ExecutionOptions, OnStatus, finish, open_session
from tandem.operations.model import Table
from tandem.operations.ports import Ports
from tandem.operations.session.job_control import FileJobs
from tandem.spec.compaction import TableCompaction
from tandem.spec.log_compaction import LogCompaction
from tandem.spec.status import OperationStatus, Phase
from tandem.spec.table import LakeTable
from tandem.spec.update import TableIngest, TableUpdate
from tandem.storage import open_store

Rows = list[tuple[int, int, str]]
"""id, at and value, in order."""

MERGE: Final[dict[str, Any]] = {"type": "LogMerge"}
MAJOR: Final[dict[str, Any]] = {"type": "Major"}
STITCH: Final[dict[str, Any]] = {"strategy": "AllBlocks"}


def rows(ids: range, value: str, at: int) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "at": pa.array([at] * len(ids), pa.int64()),
            "value": [value] * len(ids),
        }
    )


def make(folder: Path, ordering: str, *, vectors: bool = True) -> Path:
    """Two files of four rows; upserts of keys 2 and 4 to 11, and deletes of 0 and 1 in the log."""
    found = {"delta.enableDeletionVectors": "true"} if vectors else {}
    write_deltalake(str(folder), rows(range(4), "base", 5), configuration=found)
    write_deltalake(str(folder), rows(range(4, 8), "base", 5), mode="append")
    log = mergelog.open_log(str(folder))
    settings = mergelog.LogSettings(("id",), ordering)
    mergelog.ensure_log(log, settings, now_ms=0, nonce="made once")
    with mergelog.LogWriter(log, "shop", pause=lambda _: None) as writer:
        writer.append(rows(range(4, 10), "first", 6), batch=0)
        writer.append(rows(range(6, 12), "second", 7), batch=1)
        writer.append(None, rows(range(2), "", 8).select(list(settings.columns)), batch=2)
        # With an ordering column, the row of the base table is greater.
        writer.append(rows(range(2, 3), "older", 3), batch=3)
    return folder


_MODELS: Final[dict[str, type[LogCompaction | TableUpdate | TableIngest]]] = {
    "strategy": LogCompaction,
    "source": TableIngest,
    **dict.fromkeys(("upsert", "deleteKeys", "update", "delete", "merge"), TableUpdate),
}
"""The kind of a spec with this field; else a TableCompaction."""


class Orders:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.location = str(folder)
        self.store = open_store(self.location)
        self.log = mergelog.open_log(self.location)
        self.lake: LakeTable | None = None

    @classmethod
    def copy(cls, template: Path, folder: Path) -> Self:
        return cls(shutil.copytree(template, folder))

    def allow(self, vectors: str) -> None:
        """What the LakeTable says of deletion vectors."""
        self.lake = LakeTable.model_validate(
            document(
                LakeTable.kind_name,
                "orders",
                {"location": self.folder.as_uri(), "vectors": vectors},
            )
        )

    def run(
        self,
        spec: dict[str, Any],
        interceptor: Callable[..., Any] | None = None,
        *,
        name: str = "it",
        again: bool = False,
        jobs: JobRunner | None = None,
        on_status: OnStatus | None = None,
    ) -> OperationStatus:
        model = next((m for field, m in _MODELS.items() if field in spec), TableCompaction)
        operation = model.model_validate(
            document(model.kind_name, name, {"tableRef": {"name": "orders"}, **spec})
        )
        execution = ExecutionOptions(poll_ms=1, again=again)
        if interceptor is not None:
            execution = replace(execution, interceptor=interceptor)
        table = Table(self.store, DeltaLog(self.store), "LakeTable/orders", self.lake)
        ports = self.ports(jobs)
        session = open_session(operation, table, ports, execution, on_status)
        return finish(session, operation, ports)

    def do(self, spec: dict[str, Any], *args: Any, **more: Any) -> OperationStatus:
        """Run to the end, which must be a success."""
        status = self.run(spec, *args, **more)
        assert status.phase is Phase.SUCCEEDED, status
        return status

    def ports(self, jobs: JobRunner | None = None) -> Ports:
        return Ports(jobs=FileJobs(jobs or QuickJobs()))

    def append(self, upserts: pa.Table, *, batch: int = 0) -> None:
        """Under a writer's name of its own."""
        with mergelog.LogWriter(self.log, "later", pause=lambda _: None) as writer:
            writer.append(upserts, batch=batch)

    def source(self, rows: pa.Table, name: str = "source") -> dict[str, str]:
        """A Parquet file beside the table, as a source of an operation."""
        path = self.folder.parent / f"{name}.parquet"
        pq.write_table(rows, path)
        return {"format": "Parquet", "location": path.as_uri()}

    def view(self) -> Rows:
        return sorted_rows(mergelog.MergedView.open(self.log).scan().read_all())

    def base(self) -> Rows:
        return sorted_rows(scan(self.log.base.snapshot(), self.log.base.store).read_all())

    @property
    def ordered(self) -> bool:
        return mergelog.MergedView.open(self.log).settings.ordered


def sorted_rows(found: pa.Table) -> Rows:
    columns = [found[name].to_pylist() for name in ("id", "at", "value")]
    return sorted(zip(*columns, strict=True))
