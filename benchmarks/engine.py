"""Operations of Tandem on a warm Spark session, one after the other or concurrently."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Engine:
    """On `table` unless another one is given; `time` is that of its LakeTable."""

    def __init__(self, table: Path, *, time: Mapping[str, str] | None = None) -> None:
        from benchmarks.warm import start_ours
        from support.jobs.inline_runner import InlineRunner
        from tandem.locks.store import InProcessLocks
        from tandem.operations import runner as engine
        from tandem.operations.ports import Ports
        from tandem.operations.session.job_control import FileJobs

        self._table = table
        self._time = {} if time is None else {"time": dict(time)}
        self._spark = start_ours()
        ports = Ports(jobs=FileJobs(InlineRunner(self._spark)), locks=InProcessLocks())
        self._options = engine.RunOptions(ports, poll_ms=20, probe=False)
        self._run = engine.run
        self._count = 0
        self._lock = threading.Lock()
        self.inputs_gone = 0
        """Rows of outputs that were hidden since a foreign writer had replaced their input."""

    def compact(self, group: int, table: Path | None = None) -> str:
        spec = {"type": "Custom", "custom": {"where": f"grp = {group}"}}
        return self._perform("TableCompaction", spec, table)

    def delete(self, group: int, victim: int, table: Path | None = None) -> str:
        spec = {"delete": {"where": f"grp = {group} AND id = {victim}"}}
        return self._perform("TableUpdate", spec, table)

    def update(self, where: str, table: Path | None = None, **set_: str) -> str:
        return self._perform("TableUpdate", {"update": {"where": where, "set": set_}}, table)

    def remove(self, where: str, table: Path | None = None) -> str:
        return self._perform("TableUpdate", {"delete": {"where": where}}, table)

    def merge(self, source: Path, table: Path | None = None) -> str:
        """An upsert by `id`: `v` of an existing row grows; otherwise all columns are inserted."""
        merge = {
            "source": {"format": "Parquet", "location": source.as_uri()},
            "on": "t.id = s.id",
            "whenMatched": [{"update": {"set": {"v": "t.v + 1"}}}],
            "whenNotMatched": [{"insertAll": {}}],
        }
        return self._perform("TableUpdate", {"merge": merge}, table)

    def upsert(self, source: Path, key: str, table: Path | None = None) -> str:
        """All columns of the source's rows, by key."""
        merge = {
            "source": {"format": "Parquet", "location": source.as_uri()},
            "on": f"t.{key} = s.{key}",
            "whenMatched": [{"updateAll": {}}],
            "whenNotMatched": [{"insertAll": {}}],
        }
        return self._perform("TableUpdate", {"merge": merge}, table)

    def replace(self, source: Path, interval: str, table: Path | None = None) -> tuple[int, str]:
        """(the version that counts as its start, the outcome)."""
        spec = {
            "replace": {"intervals": [interval]},
            "source": {"format": "Parquet", "location": source.as_uri()},
        }
        status, outcome = self._ended("TableReplace", spec, table)
        result = status.result
        replaced = None if result is None else result.replaced
        start = None if replaced is None else replaced.start_version
        return -1 if start is None else start, outcome

    def compact_chunk(self, chunk: str, table: Path | None = None) -> str:
        spec = {"type": "SemiMajor", "semiMajor": {"chunks": [chunk]}}
        return self._perform("TableCompaction", spec, table)

    def merge_log(self, table: Path | None = None) -> str:
        return self._perform("TableCompaction", {"type": "LogMerge"}, table)

    def _perform(self, kind: str, spec: dict[str, Any], table: Path | None) -> str:
        return self._ended(kind, spec, table)[1]

    def _ended(self, kind: str, spec: dict[str, Any], table: Path | None) -> tuple[Any, str]:
        """Its status, and `ok`, `superseded`, `nothing` (there was nothing to do), or
        `aborted: why`."""
        from tandem.errors import Reason
        from tandem.spec import load_text
        from tandem.spec.status import OperationStatus, Phase

        with self._lock:
            self._count += 1
            name = f"operation-{self._count}"
        location = {"location": (table or self._table).as_uri(), **self._time}
        api = "tandem.dev/v1alpha1"
        documents = [
            json.dumps({"apiVersion": api, "kind": k, "metadata": {"name": n}, "spec": s})
            for k, n, s in (
                ("LakeTable", "arena", location),
                (kind, name, {"tableRef": {"name": "arena"}, **spec}),
            )
        ]
        resources = load_text("\n---\n".join(documents))
        status = self._run(resources, self._options)[-1].status
        assert isinstance(status, OperationStatus)
        if status.phase not in (Phase.SUCCEEDED, Phase.SUPERSEDED):
            return status, f"aborted: {status.conditions}"
        if status.result is not None and status.result.reconciled is not None:
            self.inputs_gone += status.result.reconciled.rows_masked
        if any(c.reason == Reason.NOTHING_TO_DO for c in status.conditions):
            return status, "nothing"
        return status, "ok" if status.phase is Phase.SUCCEEDED else "superseded"

    def close(self) -> None:
        self._spark.stop()
