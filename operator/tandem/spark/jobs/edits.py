"""Makes edits: files that hold another file's rows, less some, with some replaced
(docs/decisions/0191).

The engine makes those of a small commit itself; those of a large one are a round of the job, whose
driver serves rounds until the commit. An edit starts from a file that the job wrote, or from a live
one, never from an edit (R-3). It must not import Spark, which the engine does not need.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from tandem.delta import dv
from tandem.delta.change_feed import ChangeType, folder_of
from tandem.delta.datafiles.change_files import write_change_file
from tandem.delta.datafiles.edited_files import EditedFile, FileEditor
from tandem.delta.datafiles.encoded_columns import NewValues
from tandem.delta.datafiles.reader import TableFormat
from tandem.errors import CountMismatch
from tandem.jobs.formats import EditRound, InputFile, JobTable, RoundRequest, SideFileRef
from tandem.jobs.results import JobResult
from tandem.rowmap.run_table import Positions, span, to_bitmap
from tandem.spark.runtime.control import (
    Control,
    job_table_format,
    origin_of,
    output_file,
    to_file,
)
from tandem.spark.runtime.written_facts import FileDescriber, store_facts
from tandem.storage.paths import object_path
from tandem.storage.store import Store, side_by_side

AT_ONCE: Final = 2
"""Edits made at a time: they compute."""
MOST_REMEMBERED: Final = 1_000
"""Files of which footers are remembered from one round to the next."""
_FileAndIds = tuple[str, int | None, int | None]
"""A logged path, and the base id and commit version of the file."""
_NEW: Final = pa.schema(
    [("edit", pa.int32()), ("values", pa.int32()), ("position", pa.int64()), ("row", pa.int64())]
)
"""New values in a request: the row `row` of the file `values` takes the place of a position."""


@dataclass(frozen=True, slots=True)
class ReplacedRows:
    """Rows of an edited file, at ascending `positions`, that get the values of `rows` of another
    file, `values`."""

    values: InputFile
    positions: Positions
    rows: Positions

    def equals(self, other: ReplacedRows) -> bool:
        return (
            self.values.logged_path == other.values.logged_path
            and self.values.row_commit_version == other.values.row_commit_version
            and np.array_equal(self.positions, other.positions)
            and np.array_equal(self.rows, other.rows)
        )


@dataclass(frozen=True, slots=True)
class WantedEdit:
    """An edit that a decision asks for: the `source` less the rows `drops`, which include all that
    are deleted in it. `columns` are the physical names of those that may have new values; None for
    all. `part` tells apart the files that one source becomes. `change`: it is a file of the change
    data feed, which says so of its rows."""

    source: InputFile
    drops: BitMap64
    new: tuple[ReplacedRows, ...] = ()
    columns: frozenset[str] | None = None
    part: tuple[int, int] | None = None
    change: ChangeType | None = None

    def equals(self, other: WantedEdit) -> bool:
        return (
            self.drops == other.drops
            and self.change is other.change
            and self.source.base_row_id == other.source.base_row_id
            and self.source.row_commit_version == other.source.row_commit_version
            and len(self.new) == len(other.new)
            and all(a.equals(b) for a, b in zip(self.new, other.new, strict=True))
        )


@dataclass(slots=True)
class EditMaker:
    """Makes the edits of one attempt; remembers what it knows of their sources. Not thread-safe."""

    store: Store
    table: JobTable
    prefix: str
    _editors: dict[_FileAndIds, FileEditor] = field(default_factory=dict)
    _format: TableFormat | None = None

    def make(self, wanted: Sequence[WantedEdit]) -> list[EditedFile]:
        """Make these edits, some at a time.

        Raises: DataFileMissing if a file is gone, CountMismatch, StorageError.
        """
        for each in wanted:
            if each.change is None:
                self._editor(each.source)
        files = side_by_side([partial(self._make, each) for each in wanted], AT_ONCE)
        store_facts(self.store, self.table.table_id, [found.file for found in files])
        while len(self._editors) > MOST_REMEMBERED:
            del self._editors[next(iter(self._editors))]
        return files

    def _make(self, wanted: WantedEdit) -> EditedFile:
        source = wanted.source
        if wanted.change is not None:
            file = write_change_file(
                self.store,
                object_path(source.logged_path),
                source.rows,
                self.format,
                wanted.drops,
                wanted.change,
                prefix=folder_of(self.prefix),
                partition_values=source.partition_values,
            )
            return EditedFile(file, 0, file.size)
        found = self._editor(source).edit(wanted.drops, self._values(wanted))
        expected = source.rows - len(wanted.drops)
        if found.file.rows != expected:
            raise CountMismatch(
                "An edit has another number of rows than it must have",
                resource=source.logged_path,
                found=f"{found.file.rows} rows",
                expected=f"{expected} rows",
                remedy="Nothing was published; run the operation again",
            )
        return found

    def _editor(self, source: InputFile) -> FileEditor:
        # A file may be added again with other ids from one round to the next.
        key = source.logged_path, source.base_row_id, source.row_commit_version
        found = self._editors.get(key)
        if found is None:
            found = self._editors[key] = FileEditor(
                self.store,
                object_path(source.logged_path),
                source.size,
                source.rows,
                self.format,
                prefix=self.prefix,
                partition_values=source.partition_values,
                # A file that the job wrote has the ids of all its rows, and no base id yet.
                origin=None if source.base_row_id is None else origin_of(source, self.format),
                describe=FileDescriber(self.store, self.table.table_id),
            )
        return found

    @property
    def format(self) -> TableFormat:
        if self._format is None:
            self._format = job_table_format(self.table)
        return self._format

    def _values(self, wanted: WantedEdit) -> NewValues | None:
        columns = self._columns(wanted)
        if not wanted.new or not columns:
            return None
        positions = np.concatenate([each.positions for each in wanted.new])
        rows = pa.concat_tables([self._read(each, columns) for each in wanted.new])
        order = np.argsort(positions, kind="stable")
        if len(wanted.new) > 1:
            positions, rows = positions[order], rows.take(pa.array(order))
        return NewValues(positions, rows, columns)

    def _columns(self, wanted: WantedEdit) -> frozenset[str]:
        """The columns that get new values, by physical name. A row keeps the id of its place; its
        version is what the file of new values has, where an heir is the source of them: NULL for
        one that the job wrote, so that it is the commit's."""
        own = self.format.without_row_ids.data_schema
        columns = (f.physical_name for f in own) if wanted.columns is None else wanted.columns
        return frozenset((*columns, *self.format.row_ids[1:]))

    def _read(self, new: ReplacedRows, columns: frozenset[str]) -> pa.Table:
        """The rows of a replacement, in its order, with these of the columns that data files
        hold."""
        fields = self.format.data_schema.fields
        names = [f.name for f in fields if f.physical_name in columns]
        order = np.argsort(new.rows, kind="stable")
        from tandem.spark.runtime.row_files import open_input  # of edits with new values alone

        ascending = new.rows[order]
        batches: list[pa.RecordBatch] = []
        start = 0
        is_written = (
            new.values.base_row_id is None
        )  # by the job, so that the log says nothing of it
        with open_input(
            self.store, self.format, new.values, names, is_written=is_written
        ) as reader:
            for number, rows in enumerate(reader.row_groups):
                begin, end = np.searchsorted(ascending, (start, start + rows)).tolist()
                if begin < end:
                    dead = span(start, start + rows) - to_bitmap(ascending[begin:end])
                    batches += reader.batches(dead=dead, row_groups=range(number, number + 1))
                start += rows
        found = pa.Table.from_batches(batches)
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return found.take(pa.array(back))


def edit_round(control: Control, request: RoundRequest, maker: EditMaker) -> None:
    """Make the edits of a round, and publish its result: an output for each, in their order."""
    files = maker.make(wanted_of(request, control.read_side_file))
    control.publish(
        JobResult(
            operation_id=request.operation_id,
            attempt=request.attempt,
            round=request.round,
            outputs=tuple(output_file(each.file, round_=request.round) for each in files),
            rows_written=sum(each.file.rows for each in files),
            bytes_copied=sum(each.bytes_copied for each in files),
            bytes_encoded=sum(each.bytes_encoded for each in files),
        )
    )


def maker_of(control: Control) -> EditMaker:
    """What makes the edits of a job."""
    return EditMaker(control.store, control.spec.table, control.spec.data_prefix)


def encoded_round(wanted: Sequence[WantedEdit]) -> tuple[tuple[InputFile, ...], bytes, EditRound]:
    """Edits as a request names them: its inputs, whose vectors are the rows that are dropped; the
    new values, to be stored beside it (b"" for none), and the rest."""
    inputs = tuple(
        each.source.model_copy(update={"dv": dv.to_base64(each.drops) if each.drops else ""})
        for each in wanted
    )
    files: dict[str, int] = {}
    values: list[InputFile] = []
    tables = []
    for number, each in enumerate(wanted):
        for new in each.new:
            at = files.setdefault(new.values.logged_path, len(values))
            if at == len(values):
                values.append(new.values)
            count = len(new.positions)
            columns = [
                pa.repeat(pa.scalar(number, pa.int32()), count),
                pa.repeat(pa.scalar(at, pa.int32()), count),
                pa.array(new.positions),
                pa.array(new.rows),
            ]
            tables.append(pa.table(columns, schema=_NEW))
    round_ = EditRound(
        columns=tuple(None if e.columns is None else tuple(sorted(e.columns)) for e in wanted),
        parts=tuple(each.part for each in wanted),
        values=tuple(values),
        changes=tuple(e.change for e in wanted) if any(e.change for e in wanted) else None,
    )
    return inputs, to_file(pa.concat_tables(tables)) if tables else b"", round_


def wanted_of(request: RoundRequest, read: Callable[[SideFileRef], bytes]) -> list[WantedEdit]:
    """The edits that a request asks for; `read` reads a file beside it, verified. Raises:
    ManifestInvalid, StorageError."""
    found = request.edits
    assert found is not None
    new: list[list[ReplacedRows]] = [[] for _ in request.inputs]
    if found.new is not None:
        with pa.ipc.open_file(pa.BufferReader(read(found.new))) as reader:
            rows = reader.read_all()
        edits, files = (np.asarray(rows[name]) for name in ("edit", "values"))
        keys = edits.astype(np.int64) * max(1, len(found.values)) + files
        for key in np.unique(keys).tolist():
            here = np.flatnonzero(keys == key)
            edit, at = divmod(key, max(1, len(found.values)))
            positions, places = (
                np.asarray(rows[name]).astype(np.int64)[here] for name in ("position", "row")
            )
            new[edit].append(ReplacedRows(found.values[at], positions, places))
    return [
        WantedEdit(
            source.model_copy(update={"dv": ""}),
            dv.from_base64(source.dv) if source.dv else BitMap64(),
            tuple(new[number]),
            None if (columns := found.columns[number]) is None else frozenset(columns),
            found.parts[number],
            ChangeType(change) if found.changes and (change := found.changes[number]) else None,
        )
        for number, source in enumerate(request.inputs)
    ]
