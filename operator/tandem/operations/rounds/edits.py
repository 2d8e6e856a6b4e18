"""Edits that one attempt has made: files that hold another file's rows, less some, with some
replaced ("Real tables", section 1).

An edit starts from a file that the job wrote, or from a live one, never from an edit (R-3). It is
kept until the attempt ends, since a later decision may want it again: it may be published only
where a decision wants just these rows (R-4). An edit that no decision wants any more is a lost
round of its file; lost puts cost nothing and do not count.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from tandem.delta.datafiles.reader import TableFormat
from tandem.delta.datafiles.rowgroups.edited import EditedFile, FileEditor, NewValues
from tandem.delta.datafiles.writer import WrittenFile
from tandem.errors import CountMismatch
from tandem.jobs.formats import InputFile, JobTable
from tandem.rowmap.positions import Positions, span, to_bitmap
from tandem.spark.runtime.control import job_table_format
from tandem.spark.runtime.row_files import open_input
from tandem.spark.runtime.written_facts import FileDescriber, store_facts
from tandem.storage.store import Store, side_by_side

AT_ONCE: Final = 2
"""Edits made at a time: they compute."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """Rows of an edited file, at ascending `positions`, that get the values of `rows` of another
    file, `values`."""

    values: InputFile
    positions: Positions
    rows: Positions

    def equals(self, other: Replacement) -> bool:
        return (
            self.values.logged_path == other.values.logged_path
            and np.array_equal(self.positions, other.positions)
            and np.array_equal(self.rows, other.rows)
        )


@dataclass(frozen=True, slots=True)
class WantedEdit:
    """An edit that a decision asks for: the `source` less the rows `drops`, which include all that
    are deleted in it. `columns` are the physical names of those that may have new values; None for
    all. `part` tells apart the files that one source becomes."""

    source: InputFile
    drops: BitMap64
    new: tuple[Replacement, ...] = ()
    columns: frozenset[str] | None = None
    part: tuple[int, int] | None = None

    def equals(self, other: WantedEdit) -> bool:
        return (
            self.drops == other.drops
            and len(self.new) == len(other.new)
            and all(a.equals(b) for a, b in zip(self.new, other.new, strict=True))
        )


@dataclass(slots=True)
class _Made:
    wanted: WantedEdit
    file: EditedFile


@dataclass(slots=True)
class Edits:
    """The edits of one attempt. Not thread-safe.

    Attributes:
        made: their number, in so many `rounds`; `bytes_copied`, `bytes_encoded` and `seconds` are
            theirs, too.
    """

    store: Store
    table: JobTable
    prefix: str
    made: int = 0
    rounds: int = 0
    bytes_copied: int = 0
    bytes_encoded: int = 0
    seconds: float = 0.0
    _of: dict[tuple[str, tuple[int, int] | None], list[_Made]] = field(default_factory=dict)
    _editors: dict[str, FileEditor] = field(default_factory=dict)
    _format: TableFormat | None = None

    def find(self, wanted: WantedEdit) -> WrittenFile | None:
        """The edit, if it has been made."""
        for each in self._of.get((wanted.source.logged_path, wanted.part), ()):
            if each.wanted.equals(wanted):
                return each.file.file
        return None

    def lost(self, wanted: WantedEdit) -> int:
        """How many edits of the file, or of this part of it, no decision wants any more, if this
        one is wanted now."""
        made = self._of.get((wanted.source.logged_path, wanted.part), ())
        return sum(1 for each in made if not each.wanted.equals(wanted))

    def missing(self, wanted: Iterable[WantedEdit]) -> list[WantedEdit]:
        return [each for each in wanted if self.find(each) is None]

    def make(self, wanted: Sequence[WantedEdit]) -> None:
        """Make these edits, some at a time.

        Raises: DataFileMissing if a file is gone, CountMismatch, StorageError.
        """
        begun = time.monotonic()
        for each in wanted:
            self._editor(each.source)
        files = side_by_side([partial(self._make, each) for each in wanted], AT_ONCE)
        for each, found in zip(wanted, files, strict=True):
            key = (each.source.logged_path, each.part)
            self._of.setdefault(key, []).append(_Made(each, found))
            self.bytes_copied += found.bytes_copied
            self.bytes_encoded += found.bytes_encoded
        store_facts(self.store, self.table.table_id, [found.file for found in files])
        self.made += len(files)
        self.seconds += time.monotonic() - begun

    def _make(self, wanted: WantedEdit) -> EditedFile:
        source = wanted.source
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
        found = self._editors.get(source.logged_path)
        if found is None:
            found = self._editors[source.logged_path] = FileEditor(
                self.store,
                unquote(source.logged_path),
                source.size,
                source.rows,
                self.format,
                prefix=self.prefix,
                partition_values=source.partition_values,
                describe=FileDescriber(self.store, self.table.table_id),
            )
        return found

    @property
    def format(self) -> TableFormat:
        if self._format is None:
            self._format = job_table_format(self.table)
        return self._format

    def _values(self, wanted: WantedEdit) -> NewValues | None:
        if not wanted.new:
            return None
        positions = np.concatenate([each.positions for each in wanted.new])
        rows = pa.concat_tables([self._read(each) for each in wanted.new])
        order = np.argsort(positions, kind="stable")
        if len(wanted.new) > 1:
            positions, rows = positions[order], rows.take(pa.array(order))
        return NewValues(positions, rows, wanted.columns)

    def _read(self, new: Replacement) -> pa.Table:
        """The rows of a replacement, in its order, with all columns that data files hold."""
        names = self.format.data_schema.names
        order = np.argsort(new.rows, kind="stable")
        ascending = new.rows[order]
        batches: list[pa.RecordBatch] = []
        start = 0
        with open_input(self.store, self.format, new.values, names) as reader:
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
