"""Rows that a rewrite moves keep their ids and versions, whatever their files say of them."""

from __future__ import annotations

import datetime as dt
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from spark.local_exchange import LocalExchange
from support.jobs import job_files as jobs
from support.some import few
from tandem.delta import dv
from tandem.delta.datafiles.edited_files import FileEditor
from tandem.delta.datafiles.encoded_columns import NewValues
from tandem.delta.datafiles.reader import RowOrigin
from tandem.errors import ManifestInvalid
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
from tandem.spark.jobs.edits import WantedEdit, maker_of
from tandem.spark.jobs.large_bins import sort_large
from tandem.spark.runtime.control import Control, job_table_format, origin_of
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
@settings(max_examples=few(5, 20), deadline=None)
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
        for output in outputs:  # which have the ids of all rows
            assert_edit_keeps(job, output.path, output.size, output.rows, ids)
        for file in inputs:
            origin = origin_of(file, job_table_format(job.spec.table))
            assert_edit_keeps(job, file.logged_path, file.size, file.rows, ids, origin)


def assert_edit_keeps(
    job: Control, path: str, size: int, rows: int, ids: Ids, origin: RowOrigin | None = None
) -> None:
    """An edit without every second row; ones with new values for some rows, which have no version
    then, or some of them another one; and one without a single row, so that other row groups are
    copied."""
    path = object_path(path)
    editor = FileEditor(
        job.store, path, size, rows, job_table_format(job.spec.table), prefix="edits",
        partition_values={}, origin=origin,
    )  # fmt: skip
    folder = Path(job.store.location.removeprefix("file://"))
    keys = pq.read_table(folder / path)["key"].to_pylist()
    positions = np.arange(0, rows, 3)
    cleared = pa.nulls(len(positions), pa.int64())
    given = pa.array([77 if n % 2 else None for n in range(len(positions))], pa.int64())
    new, mixed = (
        NewValues(positions, pa.table(texts), frozenset(texts))
        for texts in ({"s": ["new"] * len(positions), VERSIONS: each} for each in (cleared, given))
    )
    for drops, values in (
        (BitMap64(range(1, rows, 2)), None),
        (BitMap64(), new),
        (BitMap64(), mixed),
        (BitMap64([rows - 1]) if rows > 1 else BitMap64(), new),
        (BitMap64([rows - 1]) if rows > 1 else BitMap64(), None),
    ):
        edit = editor.edit(drops, values)
        assert IDS not in edit.file.stats
        found = pq.read_table(folder / edit.file.path).to_pydict()
        kept = dict(zip(found["key"], zip(found[IDS], found[VERSIONS], strict=True), strict=True))
        assert len(kept) == edit.file.rows == rows - len(drops)
        changed = {key for key, text in zip(found["key"], found["s"], strict=True) if text == "new"}
        assert len(changed) == (0 if values is None else len({*positions.tolist()} - {*drops}))
        versions = {key: ids[key][1] for key in kept}
        if values is not None:
            of_keys = zip(keys[::3], values.rows[VERSIONS].to_pylist(), strict=True)
            versions |= {key: version for key, version in of_keys if key in kept}
        assert kept == {key: (ids[key][0], versions[key]) for key in kept}


def test_a_file_that_was_added_again_with_other_ids_is_edited_with_these(tmp_path: Path) -> None:
    """By one driver, which remembers the files of earlier rounds."""
    ids: Ids = {}
    first = write(tmp_path, 0, File((9,), None, None, False, frozenset()), ids)
    maker = maker_of(job_of(tmp_path, [first]))
    for base, version in ((first.base_row_id, 50), (70_000, 50), (70_000, 57)):
        again = first.model_copy(update={"base_row_id": base, "row_commit_version": version})
        [edit] = maker.make([WantedEdit(again, BitMap64([0]))])
        rows = pq.read_table(tmp_path / edit.file.path).to_pydict()
        assert base is not None
        assert rows[IDS] == [base + n for n in range(1, 9)]
        assert rows[VERSIONS] == [version] * 8


FILES = [
    File((9, 9), None, (*range(9), *[None] * 9), False, frozenset({0, 17})),
    File((20,), (*range(500, 510), *[None] * 10), None, True, frozenset({3})),
]


@pytest.mark.parametrize("strategy", ["Sort", "ZOrder"])
def test_rows_that_are_sorted_apart_keep_their_ids(
    strategy: Literal["Sort", "ZOrder"], tmp_path: Path
) -> None:
    ids: Ids = {}
    inputs = [write(tmp_path, number, file, ids) for number, file in enumerate(FILES)]
    job = job_of(tmp_path, inputs, layout=JobLayout(strategy=strategy, columns=("s", "key")))
    [result] = sort_large(job, [0], 60_000, LocalExchange())
    found: Ids = {}
    for file in result.files:
        rows = pq.read_table(tmp_path / file.path).to_pydict()
        found |= zip(rows["key"], zip(rows[IDS], rows[VERSIONS], strict=True), strict=True)
    assert found == {key: ids[key] for key in ids if key not in (0, 17, 103)}


def test_ids_take_little_space(tmp_path: Path) -> None:
    """Those of a row group that is copied, and of one that is encoded: they ascend by one."""
    ids: Ids = {}
    inputs = [write(tmp_path, n, File((20_000,), None, None, False, frozenset()), ids)
              for n in range(2)]  # fmt: skip
    for kind in ("copied", "encoded", "sorted"):
        job = job_of(tmp_path, inputs, **KINDS[kind])
        assert rewrite.run_here(job)
        job.store.delete([job.round_path(0, "result.json")])
        [file] = (tmp_path / "out").iterdir()
        footer = pq.read_metadata(file)
        groups = [footer.row_group(n) for n in range(footer.num_row_groups)]
        columns = [group.column(n) for group in groups for n in (4, 5)]
        assert {column.path_in_schema for column in columns} == {IDS, VERSIONS}
        assert sum(c.total_compressed_size for c in columns) < (1_000 if kind != "sorted" else 1e6)
        file.unlink()


@pytest.mark.parametrize("origin", [(None, None), (5, None), ((1 << 63) - 3, 1), (-1, 1)])
def test_an_input_without_ids_fails_the_job(
    origin: tuple[int | None, int | None], tmp_path: Path
) -> None:
    made = write(tmp_path, 0, FILES[0], {})
    changed = {"base_row_id": origin[0], "row_commit_version": origin[1]}
    for kind in ("copied", "encoded", "sorted"):
        job = job_of(tmp_path, [made.model_copy(update=changed)], **KINDS[kind])
        with pytest.raises(ManifestInvalid, match="no base id"):
            rewrite.run_here(job)


def test_jobs_of_other_tables_are_written_as_before() -> None:
    """So that a driver of the release before can read them."""
    input_ = InputFile(logged_path="a", size=1, rows=1)
    table = JobTable(
        location="file:///t", version=1, table_id="t", schema_string="", partition_columns=(),
        configuration={},
    )  # fmt: skip
    names = {"formatVersion", "loggedPath", "size", "rows", "dv", "partitionValues"}
    assert input_.model_dump(by_alias=True).keys() == names
    assert "rowIds" not in table.model_dump(by_alias=True)
