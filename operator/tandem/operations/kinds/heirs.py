"""Heirs of a rewrite's inputs: live files that hold what is left of inputs that are gone.

An edit of ours says by its row map which rows it kept, and which it gave new values; a chain of
edits leads back to the input. Files of other writers are compared: a file all of whose rows equal,
value by value, rows of inputs that its commit, or one before it, took away, is their heir,
whichever rows it was made from: rows that are equal in all columns are interchangeable. Where rows
keep their ids, these and their versions are two more columns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.actions import BASE_ROW_ID, ROW_COMMIT_VERSION
from tandem.delta.datafiles.reader import TableFormat, arrow_schema
from tandem.distinct import BoolArray, IntArray, number_rows
from tandem.errors import DataFileMissing
from tandem.jobs.formats import InputFile
from tandem.operations.kinds.commit_history import CommitHistory, SnapshotView
from tandem.operations.kinds.job_files import input_file
from tandem.reconcile.model import ChangeKind, RowMapLike
from tandem.reconcile.rewrite import Heir, HeirRows
from tandem.rowmap.run_table import Positions, span, to_array, to_bitmap
from tandem.storage.store import Store, side_by_side

MOST_BYTES: Final = 64 << 20
"""Bytes of files that are compared with one file, at most; and of rows that are kept for the next
comparison."""
_AT_ONCE: Final = 4
"""Files that are read at once."""
_AHEAD_BYTES: Final = 8 << 20
"""Bytes of new files that are read ahead, at most: decoded, they must be kept until compared."""
_FIRST_BLOCK: Final = 1 << 10
_MOST_GAPS: Final = 50
"""Rows that are left out one by one, at most, before rows are compared in any order."""


class HeirSearch:
    """Finds the heirs of the inputs of one rewrite; keeps what it has found, since files never
    change.

    Args:
        read: reads these columns of a file, or all. Raises: DataFileMissing.
        history: the commits since the version that the rewrite read, `since`.
        inputs: its inputs, by path, as the job read them; `row_map` says which rows it took.
        newest: the newest version of the table, which is at least that of its argument.
        row_ids: the columns of row ids, if rows keep theirs.
    """

    def __init__(
        self,
        read: Callable[[InputFile, Sequence[str] | None], pa.Table],
        history: CommitHistory,
        since: int,
        inputs: Mapping[str, InputFile],
        row_map: RowMapLike,
        newest: Callable[[int], int],
        row_ids: Sequence[str] = (),
    ) -> None:
        self._newest = newest
        self._row_ids = row_ids
        self._read_file = read
        self._history = history
        self._since = since
        self._inputs = inputs
        self._row_map = row_map
        self._by_map: dict[str, Heir | None] = {}
        self._by_content: dict[str, Heir | None] = {}
        self._rows: dict[str, pa.Table] = {}
        self._ids: dict[str, tuple[int | None, int | None]] = {}
        self._lock = threading.Lock()
        self._most: int | None = None
        """How many new files are compared at once, at most: half as many as the last time."""

    def of(
        self, gone: Collection[str], view: SnapshotView, *, by_content: bool
    ) -> tuple[Heir, ...]:
        """The heirs of these inputs at the version of `view`; `by_content`: also among files of
        other writers."""
        if not gone:
            return ()
        ancestors: dict[str, frozenset[str]] = {}
        for commit in self._history.since(self._since, view.snapshot):
            if commit.kind is ChangeKind.CHANGE:
                taken = (
                    ancestors.get(path, frozenset((path,)) & self._inputs.keys())
                    for path in commit.files - commit.added
                )
                lost = frozenset[str]().union(*taken)
                for path in sorted(commit.added - self._inputs.keys()):
                    # A restore may bring it back, when what it was made from is gone for long.
                    ancestors.setdefault(path, lost)
        view.prefetch(ancestors)
        candidates = {
            path: lost & set(gone)
            for path, lost in ancestors.items()
            if view.add(path) is not None and not lost.isdisjoint(gone)
        }
        self._forget_other_ids(candidates, view)
        found = {path: self._traced(path, view) for path in candidates}
        if by_content:
            unknown = {path: lost for path, lost in candidates.items() if found[path] is None}
            found |= self._compared(unknown, view)
        return tuple(h for h in found.values() if h is not None and set(h.sources) <= set(gone))

    def _forget_other_ids(self, paths: Collection[str], view: SnapshotView) -> None:
        """Drop what was found of files that were added again, with other row ids."""
        for path in paths if self._row_ids else ():
            add = view.add(path)
            assert add is not None
            ids = add.extra.get(BASE_ROW_ID), add.extra.get(ROW_COMMIT_VERSION)
            if self._ids.setdefault(path, ids) != ids:
                self._ids[path] = ids
                for known in (self._by_map, self._by_content, self._rows):
                    known.pop(path, None)

    # By row maps

    def _traced(self, path: str, view: SnapshotView) -> Heir | None:
        """The file as an heir of the one that it was edited from first."""
        if path not in self._by_map:
            self._by_map[path] = self._trace(path, view)
        return self._by_map[path]

    def _trace(self, path: str, view: SnapshotView) -> Heir | None:
        state = view.get(path)
        assert state is not None
        rows = np.arange(state.rows, dtype=np.int64)
        origins, source = rows, path
        changed = np.zeros(state.rows, dtype=bool)
        # An input may be an edit itself: of rows that the rewrite has never read.
        while source not in self._inputs:
            row_map = self._history.row_maps.get(source)
            if row_map is None:
                return None
            sources = row_map.sources(source)
            if len(sources) != 1:
                return None  # a file of several ones: not an edit
            values = row_map.changed.get(source)
            if values:
                changed |= np.isin(origins, to_array(values))
            _, origins = row_map.trace(source, origins)
            source = sources[0]
        if self._row_ids:
            # They differ where row tracking was disabled, or files got other ids, in between.
            try:
                of_heir = self._read_file(input_file(view, path, None), self._row_ids)
                of_input = self._read_file(self._inputs[source], self._row_ids)
            except DataFileMissing:
                return None  # another writer's vacuum
            ids, versions = _differ(of_heir, of_input.take(pa.array(origins)))
            if ids.any() or versions[~changed].any():
                return None
        return Heir(path, (HeirRows(source, rows, origins),), to_bitmap(rows[changed]))

    # By content

    def _compared(
        self, candidates: Mapping[str, Collection[str]], view: SnapshotView
    ) -> dict[str, Heir | None]:
        """Compares new files only while they become fewer fast, in one round and from one round to
        the next: each comparison gives other writers time for commits, and what they change
        meanwhile has to be compared again."""
        new = [path for path in candidates if path not in self._by_content]
        if self._most is not None and len(new) > self._most:
            self._most = 0
        elif new:
            self._most = len(new) // 2
            files = {path: input_file(view, path, None) for path in new}
            largest = max(file.size for file in files.values())
            together = max(1, min(_AT_ONCE, _AHEAD_BYTES // max(1, largest)))
            for first in range(0, len(new), together):
                some = new[first : first + together]
                sources = {path: self._sources(files[path], candidates[path]) for path in some}
                known = [path for path in some if sources[path]]
                self._read_ahead([f for path in known for f in (files[path], *sources[path])])
                for path in some:
                    self._by_content[path] = self._compare(path, files[path], sources[path], view)
                version = view.snapshot.version
                if 2 * (self._newest(version) - version) >= first + len(some):
                    self._most = 0
                    break
        return {path: self._by_content.get(path) for path in candidates}

    def _compare(
        self, path: str, file: InputFile, sources: Sequence[InputFile], view: SnapshotView
    ) -> Heir | None:
        if not sources:
            return None
        try:
            after = self._read(file)
            before = [self._read(source) for source in sources]
        except DataFileMissing:
            return None  # another writer's vacuum
        taken = [
            to_array(span(0, table.num_rows) - self._row_map.input(source.logged_path).dead)
            for source, table in zip(sources, before, strict=True)
        ]
        state = view.get(path)
        assert state is not None
        live = to_array(span(0, after.num_rows) - state.dead)
        rows = _chosen(after, live)
        inputs = [_chosen(table, rows) for table, rows in zip(before, taken, strict=True)]
        found = origins_in(inputs, rows)
        if found is None:
            return None
        starts = np.cumsum([0, *(len(rows) for rows in taken)])
        parts = []
        for number, source in enumerate(sources):
            here = np.flatnonzero((found >= starts[number]) & (found < starts[number + 1]))
            if len(here):
                origins = taken[number][found[here] - starts[number]]
                parts.append(HeirRows(source.logged_path, live[here], origins))
        return Heir(path, tuple(parts))

    def _sources(self, file: InputFile, lost: Collection[str]) -> list[InputFile]:
        """The inputs that a new file is compared with."""
        values = dict(file.partition_values)
        sources = [
            self._inputs[source]
            for source in sorted(lost)
            if dict(self._inputs[source].partition_values) == values
        ]
        large = file.size + sum(source.size for source in sources) > MOST_BYTES
        return [] if large else sources

    def _read_ahead(self, files: Sequence[InputFile]) -> None:
        """Read what comparisons need, several files at once."""
        missing = {each.logged_path: each for each in files if each.logged_path not in self._rows}
        with suppress(DataFileMissing):  # the comparison says of which
            side_by_side([partial(self._read, each) for each in missing.values()], _AT_ONCE)

    def _read(self, file: InputFile) -> pa.Table:
        kept = self._rows.get(file.logged_path)
        if kept is not None:
            return kept
        found = self._read_file(file, None)
        with self._lock:
            self._rows[file.logged_path] = found
            while sum(table.nbytes for table in self._rows.values()) > MOST_BYTES:
                del self._rows[next(iter(self._rows))]
        return found


def _differ(some: pa.Table, others: pa.Table) -> list[BoolArray]:
    """For each column of integers, which rows have another value."""
    names = some.column_names
    return [np.asarray(some[name]) != np.asarray(others[name]) for name in names]


def read_rows(
    store: Store, table: TableFormat, file: InputFile, columns: Sequence[str] | None = None
) -> pa.Table:
    """The rows of a file, with or without a deletion vector, in these columns of the table; None
    for all. Raises: DataFileMissing."""
    from tandem.spark.runtime.row_files import open_input  # beside other writers alone

    names = table.data_schema.names if columns is None else columns
    with open_input(store, table, file, names) as reader:
        batches = list(reader.batches())
    return pa.Table.from_batches(batches, None if batches else arrow_schema(table, names))


def origins_in(inputs: Sequence[pa.Table], rows: pa.Table) -> Positions | None:
    """The index of each row in the concatenated inputs; None if there is one that none has."""
    start = 0
    for each in inputs:
        found = aligned(each, rows)
        if found is not None:
            return found + start
        start += each.num_rows
    before = pa.concat_tables(inputs)
    key = _key_of(before)
    if key is not None:
        return _by_key(before, rows, key)
    numbers = row_numbers(pa.concat_tables([before, rows]))
    return matched(numbers[:start], numbers[start:])


def _key_of(rows: pa.Table) -> str | None:
    """The first column of integers that are all different, if no column is nested."""
    if any(pa.types.is_nested(field.type) for field in rows.schema):
        return None
    for field in rows.schema:
        values = rows.column(field.name)
        if pa.types.is_integer(field.type) and not values.null_count:
            numbers = np.sort(np.asarray(values))
            if (numbers[1:] != numbers[:-1]).all():
                return str(field.name)
    return None


def _by_key(before: pa.Table, after: pa.Table, key: str) -> Positions | None:
    """As `matched`, for rows of which no two have the same `key`."""
    known, wanted = (np.asarray(table.column(key)) for table in (before, after))
    found = None if after.column(key).null_count else matched(known, wanted)
    same = None if found is None else aligned(before.take(pa.array(found)), after)
    return None if same is None else found


def _chosen(table: pa.Table, rows: Positions) -> pa.Table:
    return table if len(rows) == table.num_rows else table.take(pa.array(rows))


def aligned(before: pa.Table, after: pa.Table) -> Positions | None:
    """For each row of `after` the index of the row of `before` that it equals, bit by bit, in
    order: `after` is `before` without some rows. None if it is not, or if that takes too long to
    find out this way."""
    columns = []
    for at in range(before.num_columns):
        pair = [_one_array(table.column(at)) for table in (before, after)]
        if pa.types.is_nested(pair[0].type) or pair[0].type != pair[1].type:
            return None
        if pa.types.is_null(pair[0].type):
            continue  # no values, which Arrow cannot compare
        columns.append([_as_integers(a) if pa.types.is_floating(a.type) else a for a in pair])
    rows, wanted = before.num_rows, after.num_rows
    found: list[Positions] = []
    i = j = gaps = 0
    while j < wanted:
        length = _FIRST_BLOCK
        while True:
            length = min(length, rows - i, wanted - j)
            same = _same(columns, i, j, length)
            found.append(np.arange(i, i + same))
            i, j = i + same, j + same
            if same < length or j == wanted or not length:
                break
            length *= 2
        if j < wanted:
            i, gaps = i + 1, gaps + 1
            if rows - i < wanted - j or gaps > _MOST_GAPS:
                return None
    return np.concatenate(found) if found else np.empty(0, np.int64)


def _same(columns: list[list[Any]], i: int, j: int, length: int) -> int:
    """How many rows from `i` and `j` on are equal, at most `length`."""
    for before, after in columns:
        if not length:
            break
        a, b = before.slice(i, length), after.slice(j, length)
        equal = pc.equal(a, b)
        if equal.null_count:
            equal = pc.coalesce(equal, pc.and_(a.is_null(), b.is_null()))
        other = pc.index(equal, pa.scalar(False)).as_py()
        length = length if other < 0 else other
    return length


def _one_array(column: pa.ChunkedArray) -> Any:
    if column.num_chunks == 1:
        return column.chunk(0)
    return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)


def matched(before: IntArray, after: IntArray) -> Positions | None:
    """For each row of `after` the index of a row of `before` with the same number, each used once,
    equal rows in order; None if there are too few."""
    sorted_ = np.argsort(before, kind="stable")
    numbers = before[sorted_]
    order = np.argsort(after, kind="stable")
    wanted = after[order]
    is_first = np.r_[True, wanted[1:] != wanted[:-1]] if len(wanted) else np.empty(0, bool)
    begins = np.maximum.accumulate(np.where(is_first, np.arange(len(wanted)), 0))
    at = np.searchsorted(numbers, wanted) + np.arange(len(wanted)) - begins
    if len(at) and (int(at.max()) >= len(numbers) or bool((numbers[at] != wanted).any())):
        return None
    found = np.empty(len(after), dtype=np.int64)
    found[order] = sorted_[at]
    return found


def row_numbers(rows: pa.Table) -> IntArray:
    """A number for each row: equal for rows that are equal in all columns, bit by bit."""
    columns = [_codes(rows.column(at)) for at in range(rows.num_columns)]
    return number_rows(columns)[0] if columns else np.zeros(rows.num_rows, np.int64)


def _codes(column: Any) -> IntArray:
    """A number for each value of a column; null has one of its own, and so have floats that differ
    in a bit."""
    array = _one_array(column) if isinstance(column, pa.ChunkedArray) else column
    is_ = pa.types
    if is_.is_struct(array.type):
        fields = [_codes(field) for field in array.flatten()]
        return number_rows([_validity(array), *fields])[0]
    if is_.is_map(array.type) or is_.is_list(array.type) or is_.is_large_list(array.type):
        return _list_codes(array)
    if is_.is_dictionary(array.type):
        array = array.dictionary_decode()
    codes = pc.dictionary_encode(array, null_encoding="mask").indices
    return np.asarray(pc.fill_null(codes, -1)).astype(np.int64)


def _validity(array: Any) -> IntArray:
    return np.asarray(array.is_valid()).astype(np.int64)


def _as_integers(array: Any) -> Any:
    """Floats by their bits: NaNs that differ, and the two zeros, are different values."""
    width = pa.int64() if array.type == pa.float64() else pa.int32()
    return pa.Array.from_buffers(width, len(array), array.buffers(), offset=array.offset)


def _list_codes(array: Any) -> IntArray:
    """Lists by the numbers of their elements, as bytes."""
    offsets = np.asarray(array.offsets).astype(np.int64)
    inside = slice(int(offsets[0]), int(offsets[-1]))
    if pa.types.is_map(array.type):
        elements = number_rows([_codes(array.keys[inside]), _codes(array.items[inside])])[0]
    else:
        elements = _codes(array.values[inside])
    lengths = np.where(_validity(array) > 0, np.diff(offsets), 0)
    starts = np.r_[0, np.cumsum(lengths)]
    keep = np.repeat(_validity(array) > 0, np.diff(offsets))
    data = np.ascontiguousarray(elements[keep]).tobytes()
    content = pa.Array.from_buffers(
        pa.large_binary(),
        len(array),
        [None, pa.py_buffer((starts * 8).astype(np.int64).tobytes()), pa.py_buffer(data)],
    )
    codes = np.asarray(pc.dictionary_encode(content).indices).astype(np.int64)
    return number_rows([_validity(array), codes])[0]
