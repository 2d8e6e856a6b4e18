"""Rows that a rewrite moves keep their ids and versions, whatever their files say of them."""

from __future__ import annotations

import datetime as dt
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from support.jobs import job_files as jobs
from tandem.delta import dv
from tandem.delta.datafiles.edited_files import FileEditor
from tandem.jobs.formats import (
    InputFile,
    JobBin,
    JobLayout,
    JobSpec,
    JobTable,
    RewriteJob,
    TimeBorders,
)
from tandem.jobs.results import OutputFile
from tandem.spark.jobs import rewrite
from tandem.spark.runtime.control import Control
from tandem.spec.fields import Granularity
from tandem.storage import open_store
from tandem.storage.paths import object_path

IDS, VERSIONS = "_row-id-col-1", "_row-commit-version-col-1"
FIELDS = {"key": "long", "f": "double", "s": "string", "t": "timestamp"}
SCHEMA = json.dumps({"type": "struct", "fields": [
    {"name": name, "type": type_, "nullable": True, "metadata": {}}
    for name, type_ in FIELDS.items()
]})  # fmt: skip
Ids = dict[int, tuple[int, int]]
"""By key: the id of a row, and its version."""


@dataclass(frozen=True)
class File:
    """A file: the row groups that it has, and of its columns of ids and versions the values; None
    for one that it does not have."""

    groups: tuple[int, ...]
    ids: tuple[int | None, ...] | None
    versions: tuple[int | None, ...] | None
    first: bool
    dead: frozenset[int]

    @property
    def rows(self) -> int:
        return sum(self.groups)


@st.composite
def files(draw: st.DrawFn) -> File:
    groups = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    rows = sum(groups)
    column = st.none() | st.lists(
        st.none() | st.integers(0, 1 << 40), min_size=rows, max_size=rows
    ).map(tuple)
    dead = draw(st.frozensets(st.integers(0, rows - 1), max_size=max(rows - 1, 0)))
    return File(groups, draw(column), draw(column), draw(st.booleans()), dead)


def write(folder: Path, number: int, file: File, ids: Ids) -> InputFile:
    """Write it; `ids` gets what its rows have."""
    keys = [100 * number + n for n in range(file.rows)]
    base, version = 10_000 * (number + 1), 50 + number
    days = [dt.datetime(2026, 1, 1 + key % 3, tzinfo=dt.UTC) for key in keys]
    times = pa.array(days, pa.timestamp("us", "UTC"))
    own = {"key": keys, "f": [key / 2 for key in keys], "s": [str(k % 5) for k in keys], "t": times}
    extra = {
        name: pa.array(values, pa.int64())
        for name, values in ((IDS, file.ids), (VERSIONS, file.versions))
        if values is not None
    }
    table = pa.table({**extra, **own} if file.first else {**own, **extra})
    path = folder / f"{number}.parquet"
    with pq.ParquetWriter(path, table.schema, compression="zstd", store_schema=False) as writer:
        start = 0
        for rows in file.groups:
            writer.write_table(table.slice(start, rows))
            start += rows
    for n, key in enumerate(keys):
        id_ = None if file.ids is None else file.ids[n]
        own_version = None if file.versions is None else file.versions[n]
        ids[key] = (
            base + n if id_ is None else id_,
            version if own_version is None else own_version,
        )
    return InputFile(
        logged_path=path.name,
        size=path.stat().st_size,
        rows=file.rows,
        dv=dv.to_base64(BitMap64(file.dead)) if file.dead else "",
        base_row_id=base,
        row_commit_version=version,
    )


def job_of(
    folder: Path, inputs: Sequence[InputFile], *, vectors: bool = False, **options: Any
) -> Control:
    store = open_store(f"file://{folder}")
    vectors_on = {"delta.enableDeletionVectors": "true"} if vectors else {}
    spec = JobSpec(
        operation_id=jobs.OPERATION,
        attempt=1,
        table=JobTable(
            location=store.location,
            version=60,
            table_id="t",
            schema_string=SCHEMA,
            partition_columns=(),
            configuration=vectors_on,
            row_ids=(IDS, VERSIONS),
        ),
        data_prefix="out",
        control_prefix="_tandem/1",
        job=RewriteJob(
            inputs=tuple(inputs),
            bins=(JobBin(inputs=tuple(range(len(inputs)))),),
            target_file_size=0,
            **options,
        ),
    )
    return Control(JobSpec.model_validate_json(spec.model_dump_json(by_alias=True)), store)


def found_in(folder: Path, outputs: Sequence[OutputFile]) -> Ids:
    found: Ids = {}
    for output in outputs:
        rows = pq.read_table(folder / object_path(output.path)).to_pydict()
        here = dict(zip(rows["key"], zip(rows[IDS], rows[VERSIONS], strict=True), strict=True))
        assert len(here) == output.rows
        assert found.keys().isdisjoint(here)
        found |= here
        assert IDS not in output.stats
        assert VERSIONS not in output.stats
        assert json.loads(output.stats)["nullCount"].keys() == FIELDS.keys()
    return found


KINDS: dict[str, dict[str, Any]] = {
    "copied": {"min_row_group_rows": 1},
    "some copied": {"min_row_group_rows": 5},
    "encoded": {"reencode": True},
    "sorted": {"layout": JobLayout(strategy="Sort", columns=("s", "key"))},
    "z-order": {"layout": JobLayout(strategy="ZOrder", columns=("s", "key"))},
    "divided": {"borders": TimeBorders(column="t", granularity=Granularity.DAY)},
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(st.lists(files(), min_size=1, max_size=4), st.booleans())
def test_rows_keep_their_ids_and_versions(
    kind: str, given_files: list[File], vectors: bool
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, ids = Path(name), Ids()
        inputs = [write(folder, number, file, ids) for number, file in enumerate(given_files)]
        job = job_of(folder, inputs, vectors=vectors, **KINDS[kind])
        assert rewrite.run_here(job)
        outputs = jobs.result(job).outputs
        found = found_in(folder, outputs)
        assert found.items() <= ids.items()
        dead = {100 * n + at for n, file in enumerate(given_files) for at in file.dead}
        assert ids.keys() - dead <= found.keys()
        for output in outputs:  # an edit of it, without every second row
            drops = BitMap64(range(1, output.rows, 2))
            path = object_path(output.path)
            editor = FileEditor(
                job.store, path, output.size, output.rows, job.table, prefix="edits",
                partition_values={},
            )  # fmt: skip
            edit = editor.edit(drops).file
            rows = pq.read_table(folder / object_path(edit.path)).to_pydict()
            kept = zip(rows["key"], zip(rows[IDS], rows[VERSIONS], strict=True), strict=True)
            assert dict(kept).items() <= ids.items()
            assert edit.rows == output.rows - len(drops) == len(rows["key"])
            assert IDS not in edit.stats
