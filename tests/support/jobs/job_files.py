"""Job specs over real tables, and the answers that jobs gave."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from tandem.delta import dv
from tandem.delta.datafiles.reader import DataFileReader
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.snapshot import Snapshot
from tandem.delta.scan import table_format
from tandem.jobs.formats import AnyJob, InputFile, JobSpec, JobTable
from tandem.jobs.results import JobFailure, JobResult, SideFileRef
from tandem.spark.runtime.control import Control, encode
from tandem.storage import Store, open_store
from tandem.storage.paths import object_path

OPERATION = "0123456789abcdef"


def snapshot_of(path: Path, version: int | None = None) -> tuple[Store, Snapshot]:
    store = open_store(str(path))
    return store, DeltaLog(store).snapshot(version)


def input_files(store: Store, snapshot: Snapshot) -> tuple[InputFile, ...]:
    """All live files, by path."""
    found = []
    for add in sorted(snapshot.adds(), key=lambda a: a.logged_path):
        with DataFileReader(store, add.path, table_format(snapshot), columns=()) as reader:
            rows = reader.num_rows
        dead = dv.load(store, add.deletion_vector) if add.deletion_vector else None
        found.append(
            InputFile(
                logged_path=add.logged_path,
                size=add.size,
                rows=rows,
                dv=dv.to_base64(dead) if dead else "",
                partition_values=dict(add.partition_values),
            )
        )
    return tuple(found)


def control(store: Store, snapshot: Snapshot, job: AnyJob, attempt: int = 1) -> Control:
    """A job, written down as the engine does."""
    spec = JobSpec(
        operation_id=OPERATION,
        attempt=attempt,
        table=JobTable(
            location=store.location,
            version=snapshot.version,
            table_id=snapshot.metadata.id,
            schema_string=snapshot.metadata.schema_string,
            partition_columns=snapshot.partition_columns,
            configuration=dict(snapshot.configuration),
        ),
        data_prefix=f"{OPERATION}-{attempt}",
        control_prefix=f"_tandem/operations/{OPERATION}/attempts/{attempt}",
        job=job,
    )
    store.put(f"{spec.control_prefix}/job.json", encode(spec))
    return Control(spec, store)


def result(job: Control, round_: int = 0) -> JobResult:
    return JobResult.model_validate_json(job.store.get(job.round_path(round_, "result.json")))


def failure(job: Control, round_: int = 0) -> JobFailure:
    return JobFailure.model_validate_json(job.store.get(job.round_path(round_, "failure.json")))


def side_file(job: Control, ref: SideFileRef) -> bytes:
    data = job.store.get(ref.path)
    assert (len(data), hashlib.sha256(data).hexdigest()) == (ref.size, ref.sha256)
    return data


def matches(job: Control, round_: int = 0) -> list[dict[str, Any]]:
    ref = result(job, round_).matches
    assert ref is not None
    table = pa.ipc.open_file(pa.py_buffer(side_file(job, ref))).read_all()
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def read_output(job: Control, path: str, values: Mapping[str, str | None]) -> pa.Table:
    """All rows of a file that a job wrote, by the path that the log would name."""
    path = object_path(path)
    with DataFileReader(job.store, path, job.table, partition_values=values) as reader:
        return pa.Table.from_batches(list(reader.batches()))
