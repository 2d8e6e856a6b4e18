"""How many chunks of a table's time a replace leaves empty.

A chunk is left empty if a row in scope is removed from it, and none is there afterwards: neither
one that stays nor one of the source. Statistics decide where a file lies within one chunk; the
times of others are read, if the answer depends on them. Must not know why a row is removed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from tandem.delta.actions import AddFile
from tandem.delta.log import files as files_
from tandem.delta.log.snapshot import Snapshot
from tandem.operations.kinds.table.row_scope import ScopedRows
from tandem.pruning.scope import timed_bounds
from tandem.rowmap.positions import to_array
from tandem.timeline.chunks import TimeColumn
from tandem.timeline.file_intervals import chunk_numbers
from tandem.timeline.row_chunks import NO_NUMBER

Hull = tuple[int, int]
"""The numbers of the first and the last chunk that a file may have rows in."""


class TooManyRows(Exception):
    """The answer takes more rows than are read for it."""


class EmptyChunks:
    """Counts them, in every round of an operation. Not thread-safe."""

    def __init__(self, rows: ScopedRows, time: TimeColumn) -> None:
        self._rows, self._time = rows, time
        self._hulls: dict[str, Hull | None] = {}
        self._occupied: dict[str, tuple[BitMap64 | None, frozenset[int]]] = {}

    def count(
        self,
        snapshot: Snapshot,
        removed: Mapping[str, BitMap64],
        kept: Mapping[str, BitMap64],
        outputs: Iterable[AddFile],
    ) -> int | None:
        """The number of chunks that are left empty, None if it is too much to read.

        Args:
            removed: the rows in scope that go, by file of the snapshot.
            kept: those that stay.
            outputs: files that the commit adds, all of whose rows are in scope.

        Raises: DataFileMissing, StorageError.
        """
        new = {add.logged_path: add for add in outputs}
        live = files_.with_paths(snapshot.files, {*removed, *kept} - self._hulls.keys())
        for table in (live, files_.from_adds([a for p, a in new.items() if p not in self._hulls])):
            if table.num_rows:
                self._hulls.update(self._hulls_of(table))
        stays: dict[str, BitMap64 | None] = {**kept, **dict.fromkeys(new)}
        try:
            return len(self._empty(snapshot, removed, stays, new))
        except TooManyRows:
            return None

    def _empty(
        self,
        snapshot: Snapshot,
        removed: Mapping[str, BitMap64],
        stays: Mapping[str, BitMap64 | None],
        new: Mapping[str, AddFile],
    ) -> set[int]:
        """Raises: TooManyRows, DataFileMissing, StorageError."""
        filled = {hull[0] for path in stays if (hull := self._one_chunk(path))}
        empty = {hull[0] for path in removed if (hull := self._one_chunk(path))}
        for path, gone in removed.items():
            if not self._one_chunk(path) and not _covers(filled, self._hulls[path]):
                empty |= self._chunks(snapshot, path, gone, new)
        empty -= filled
        for path, rows in stays.items():
            if not empty:
                break
            if not self._one_chunk(path) and _meets(empty, self._hulls[path]):
                empty -= self._chunks(snapshot, path, rows, new)
        return empty

    def _one_chunk(self, path: str) -> Hull | None:
        hull = self._hulls[path]
        return hull if hull is not None and hull[0] == hull[1] else None

    def _chunks(
        self,
        snapshot: Snapshot,
        path: str,
        rows: BitMap64 | None,
        new: Mapping[str, AddFile],
    ) -> frozenset[int]:
        """The chunks of rows of a file; None: of all. Raises as `_empty`."""
        known = self._occupied.get(path)
        if known is not None and known[0] == rows:
            return known[1]
        add = new[path] if path in new else snapshot.files_by_path([path])[path]
        numbers = self._rows.numbers(snapshot, add)
        if numbers is None:
            raise TooManyRows
        found = np.unique(numbers if rows is None else numbers[to_array(rows)]).tolist()
        chunks = frozenset(found) - {NO_NUMBER}
        self._occupied[path] = rows, chunks
        return chunks

    def _hulls_of(self, files: pa.Table) -> Mapping[str, Hull | None]:
        """None: a row may have no time, or a time that is unknown."""
        time = self._time
        low, high, timed = timed_bounds(files, time.path, time.type, partition=time.partition)
        known = np.asarray(pc.fill_null(pc.less_equal(low, high), False))
        first, last = (
            chunk_numbers(np.asarray(pc.fill_null(each, 0)), time.granularity).tolist()
            for each in (low, high)
        )
        found = zip(files["path"].to_pylist(), (known & timed).tolist(), first, last, strict=True)
        return {path: (one, other) if is_timed else None for path, is_timed, one, other in found}


def _covers(chunks: set[int], hull: Hull | None) -> bool:
    """Whether these are all chunks of a hull."""
    if hull is None or hull[1] - hull[0] >= len(chunks):
        return False
    return all(number in chunks for number in range(hull[0], hull[1] + 1))


def _meets(chunks: set[int], hull: Hull | None) -> bool:
    return hull is None or any(hull[0] <= number <= hull[1] for number in chunks)
