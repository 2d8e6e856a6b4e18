"""What a view answers: splits, certain numbers, and certain bounds. Each is of exactly one version.

Pure. Certain is what the log says for sure: the rows of a file all of whose live rows match, and a
least or greatest value where statistics are exact. What is left is named as splits, for the caller
to read: `rest` of a count, and of a bound the files that could beat it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.log import files as files_
from tandem.distinct import BoolArray, IntArray
from tandem.errors import InvalidSpec
from tandem.index.entries import UNKNOWN_ROWS, exact_sum
from tandem.index.narrowing import GROUPS, Narrower
from tandem.index.statistics import BoundArray, Side, side_of
from tandem.index.window import Chosen, Head, View
from tandem.pruning.bounds import HeldBounds
from tandem.statements.tree import Expr
from tandem.statements.types import Schema, SqlType

# An answer in portions: many tasks share it, and no process has to hold all of it. Pure.
#
# A portion is a range of logged paths, and nothing else. Which files of a version lie in it
# depends neither on who answers nor on what is known of the files. So each task asks for its own
# portion, whichever answers, and all of them have each file once.


FILE_BYTES: Final = 1 << 20
"""What a file costs beside its bytes: a task opens it, and reads its footer."""
_LEAST_BYTES = 4 << 20
"""Of a portion: less is not worth a task."""
MOST: Final = 50_000
"""Portions of an answer, about, so that a driver can hold them: of larger ones, if need be."""
_MOST_SIZE = 1 << 50
"""Bytes that a file is taken for, whatever its log says."""


@dataclass(frozen=True, slots=True)
class PathRange:
    """Logged paths from `first` on and before `end`, by their bytes; None for no end."""

    first: str = ""
    end: str | None = None

    def mask(self, paths: pa.ChunkedArray) -> BoolArray:
        """Which of some paths lie in it."""
        found = pc.greater_equal(paths, pa.scalar(self.first, pa.string()))
        if self.end is not None:
            found = pc.and_(found, pc.less(paths, pa.scalar(self.end, pa.string())))
        inside: BoolArray = found.to_numpy()
        return inside


def within(chosen: list[Chosen], paths: PathRange | None) -> list[Chosen]:
    """The entries whose paths lie in a range; None for all of them."""
    if paths is None:
        return chosen
    found = []
    for part in chosen:
        found.append(part.only(paths.mask(part.entries.paths_at(part.rows))))
    return found


@dataclass(frozen=True, slots=True)
class Cut:
    """How an answer is cut.

    Attributes:
        tasks: that can run at once: a small answer is cut for all of them.
        most_bytes: of a portion, where it is not a single row group.
    """

    tasks: int = 1
    most_bytes: int = 128 << 20


@dataclass(frozen=True, slots=True)
class Portion:
    """What one task reads: of each file in a range of paths, part `part` of `parts` of its row
    groups."""

    paths: PathRange
    part: int = 0
    parts: int = 1

    def groups(self, count: int) -> range:
        """The row groups of a file of so many."""
        return range(count * self.part // self.parts, count * (self.part + 1) // self.parts)


WHOLE: Final = Portion(PathRange())
"""An answer that is not cut."""


@dataclass(frozen=True)
class Portions:
    """Where an answer is cut.

    Attributes:
        splits: files of the whole answer.
        firsts: the path at which each range of paths begins, ascending.
        parts: so many tasks share each range.
    """

    head: Head
    splits: int
    firsts: Sequence[str]
    parts: Sequence[int]

    @staticmethod
    def cut_at(firsts: Sequence[str], parts: Sequence[int]) -> list[Portion]:
        """All portions. The first one begins with the first path that there can be, and the last
        one has no end: what answers for a portion may know of files that this answer left out,
        and each of these is in one of them."""
        ranges = zip(["", *firsts[1:]], [*firsts[1:], None], parts, strict=False)
        return [
            Portion(PathRange(first, end), part, count)
            for first, end, count in ranges
            for part in range(count)
        ]


def portions_of(head: Head, files: pa.Table, cut: Cut) -> Portions:
    """Cut an answer.

    Args:
        files: with `path` and `size`.
    """
    order = pc.sort_indices(files["path"])
    sizes = files["size"].take(order).to_numpy()
    starts, parts = _starts(np.clip(sizes, 0, _MOST_SIZE), cut)
    firsts = files["path"].take(order.take(pa.array(starts))).to_pylist()
    # A path that a log has twice is in one range.
    together = _together(zip(firsts, parts.tolist(), strict=True))
    return Portions(head, files.num_rows, tuple(together), tuple(together.values()))


def _starts(sizes: IntArray, cut: Cut) -> tuple[IntArray, IntArray]:
    """Where a portion begins, and how many tasks share it."""
    if not len(sizes):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    # As floats: the sum of what logs say may be more than 64 bits hold.
    costs = sizes.astype(np.float64) + FILE_BYTES
    before = np.cumsum(costs) - costs
    total = float(before[-1] + costs[-1])
    goal = min(cut.most_bytes, max(_LEAST_BYTES, total / cut.tasks))
    goal = max(goal, FILE_BYTES, total / MOST)
    shares = np.rint(sizes / goal).astype(np.int64)
    large = shares > 1
    begins = np.ones(len(sizes), bool)
    begins[1:] = (np.diff(before // goal) > 0) | large[1:] | large[:-1]
    starts = np.flatnonzero(begins)
    return starts, np.maximum(shares[starts], 1)


def _together(found: Iterable[tuple[str, int]]) -> dict[str, int]:
    parts: dict[str, int] = {}
    for first, each in found:
        parts[first] = max(each, parts.get(first, 1))
    return parts


@dataclass(frozen=True)
class Splits:
    """Files of one version that have to be read, and nothing else of it.

    Attributes:
        files: one row per file, as `Snapshot.files` but without statistics.
        certain: for each file, whether the filter is true on all of its rows that are needed.
        rows: for each file its live rows, -1 if unknown.
        groups: for each file the row groups that are needed (`narrowing.GROUPS`).
        readable_until_ms: until when cleaning leaves these files (Unix milliseconds, at least); 0
            if that is not known.
    """

    head: Head
    files: pa.Table
    certain: BoolArray
    rows: IntArray
    groups: pa.Array
    readable_until_ms: int = 0

    def kept(self, until_ms: int) -> Splits:
        """With `readable_until_ms`."""
        return replace(self, readable_until_ms=until_ms)

    def __len__(self) -> int:
        return int(self.files.num_rows)

    @property
    def version(self) -> int:
        return self.head.version

    def slice(self, start: int, count: int) -> Splits:
        stop = start + count
        files = self.files.slice(start, count)
        groups = self.groups.slice(start, count)
        return replace(
            self,
            files=files,
            certain=self.certain[start:stop],
            rows=self.rows[start:stop],
            groups=groups,
        )

    def take(self, order: IntArray) -> Splits:
        return replace(
            self,
            files=self.files.take(pa.array(order)),
            certain=self.certain[order],
            rows=self.rows[order],
            groups=self.groups.take(pa.array(order)),
        )


@dataclass(frozen=True)
class CertainCount:
    """`rows` that match for sure, and the splits whose matching rows have to be counted."""

    version: int
    rows: int
    rest: Splits


@dataclass(frozen=True)
class CertainBounds:
    """The least and the greatest value of a column as far as the log says them; None if it says
    none.

    Attributes:
        below, above: splits that may have a lesser or a greater one, the most promising first.
        lows, highs: for each of these what bounds its values, None if nothing does.
    """

    version: int
    column: str
    low: Any
    high: Any
    below: Splits
    above: Splits
    lows: Sequence[Any]
    highs: Sequence[Any]


Scope = tuple[Expr | None, Collection[str], Narrower | None, PathRange | None]
"""A condition, segments, what narrows and paths: of the functions below."""


def splits(
    view: View,
    where: Expr | None = None,
    segments: Collection[str] = (),
    narrower: Narrower | None = None,
    paths: PathRange | None = None,
) -> Splits:
    """The files whose rows may match, and with a narrower which of their row groups.

    Args:
        paths: only files of these; so in the functions below.
    Raises: UnknownSegment.
    """
    return splits_of(view.head, *_needed(view, where, segments, narrower, paths))


def portions(
    view: View,
    cut: Cut,
    where: Expr | None = None,
    segments: Collection[str] = (),
    narrower: Narrower | None = None,
    paths: PathRange | None = None,
) -> Portions:
    """Where the files of `splits` are cut. Raises: UnknownSegment."""
    parts, _ = _needed(view, where, segments, narrower, paths)
    names = [part.entries.columns_at(part.rows, ("path", "size")) for part in parts]
    every = [files_.EMPTY.select(["path", "size"]), *names]
    return portions_of(view.head, pa.concat_tables(every), cut)


def _needed(
    view: View,
    where: Expr | None,
    segments: Collection[str],
    narrower: Narrower | None,
    paths: PathRange | None,
) -> tuple[list[Chosen], list[pa.Array] | None]:
    """The files whose rows may match, and their row groups; None for all of them."""
    chosen = within(view.chosen(where, segments), paths)
    if where is None or narrower is None:
        return chosen, None
    parts, groups = [], []
    for part, found in zip(chosen, narrower.narrow(view.head, where, chosen), strict=True):
        keep = found.needed
        parts.append(Chosen(part.entries, part.rows[keep], found.certain[keep]))
        groups.append(found.groups.filter(pa.array(keep)))
    return parts, groups


def certain_count(
    view: View,
    where: Expr | None = None,
    segments: Collection[str] = (),
    narrower: Narrower | None = None,
    paths: PathRange | None = None,
) -> CertainCount:
    """The number of rows that match; with a narrower by row groups, too. Raises: UnknownSegment."""
    everything = where is None and not segments and paths is None
    if everything and view.total is not None:
        return CertainCount(view.version, view.total, splits_of(view.head, []))
    rows, left = 0, []
    for part in within(view.chosen(where, segments), paths):
        live = part.entries.live(part.rows)
        known = part.certain & (live != UNKNOWN_ROWS)
        rows += exact_sum(live[known])
        left.append(part.only(~known))
    if where is None or narrower is None:
        return CertainCount(view.version, rows, splits_of(view.head, left))
    rest, groups = [], []
    for part, found in zip(left, narrower.narrow(view.head, where, left), strict=True):
        rows += exact_sum(found.counted)
        # What is certain and has no number of rows is counted by reading it.
        keep = found.open | (part.certain & found.needed)
        rest.append(Chosen(part.entries, part.rows[keep], found.certain[keep]))
        groups.append(found.rest.filter(pa.array(keep)))
    return CertainCount(view.version, rows, splits_of(view.head, rest, groups))


@dataclass(frozen=True)
class Knowledge:
    """What the log says of the files of a version. `columns`: how many files have a bound."""

    files: int
    without_rows: int
    with_deleted: int
    columns: Mapping[str, int]


def knowledge(view: View) -> Knowledge:
    """How much the log says of the files of a version."""
    head = view.head
    schema = Schema.from_json(head.metadata.schema_string)
    parts = view.chosen()
    columns: dict[str, int] = {}
    for item in schema.columns:
        if not item.type.is_atomic:
            continue
        found = [
            part.entries.column(item.name, item.type, head.schema, head.metadata.partition_columns)
            for part in parts
        ]
        taken = [
            None if column is None else column.take(part.rows)
            for column, part in zip(found, parts, strict=True)
        ]
        bound = side_of(taken, [len(part.rows) for part in parts], item.type, Side.LOW)
        columns[item.name] = int(bound.known.sum())
    return Knowledge(
        sum(len(part.rows) for part in parts),
        sum(int((part.entries.live(part.rows) == UNKNOWN_ROWS).sum()) for part in parts),
        sum(int((part.entries.dead[part.rows] > 0).sum()) for part in parts),
        columns,
    )


def certain_bounds(
    view: View,
    columns: Sequence[str],
    where: Expr | None = None,
    segments: Collection[str] = (),
    paths: PathRange | None = None,
) -> list[CertainBounds]:
    """The least and the greatest value of each column, of the rows that match.

    Args:
        columns: names as the schema spells them.
    Raises: InvalidSpec: the values of a column have no order. UnknownSegment.
    """
    types = {name: _ordered_type(view.head, name) for name in columns}
    chosen = within(view.chosen(where, segments), paths)
    return [_bounds_of(view, name, types[name], chosen) for name in columns]


def _bounds_of(view: View, name: str, type_: SqlType, chosen: Sequence[Chosen]) -> CertainBounds:
    head = view.head
    found = []
    for part in chosen:
        column = part.entries.column(name, type_, head.schema, head.metadata.partition_columns)
        taken = None if column is None else column.take(part.rows)
        found.append(
            _Part(taken, part.entries.live(part.rows), part.entries.tight[part.rows], part.certain)
        )
    whole = splits_of(head, chosen)
    sides = []
    for side in Side:
        bound = side_of([part.column for part in found], [len(p.live) for p in found], type_, side)
        empty = np.concatenate([part.empty for part in found])
        exact = np.concatenate([part.certain & part.has_bound(bound.constant) for part in found])
        sides.append(_one_side(bound, exact, empty, side))
    (low, below, lows), (high, above, highs) = sides
    return CertainBounds(
        view.version, name, low, high, whole.take(below), whole.take(above), lows, highs
    )


@dataclass(frozen=True)
class _Part:
    """A column in the chosen entries of a entries."""

    column: HeldBounds | None
    live: IntArray
    tight: BoolArray
    certain: BoolArray

    def has_bound(self, constant: bool) -> BoolArray:
        """Whether a live row has the bound: the value of a partition, if there is a row at all; one
        of statistics, if no row is deleted."""
        return self.live > 0 if constant else self.tight

    @property
    def empty(self) -> BoolArray:
        """Whether no live row has a value."""
        none: BoolArray = self.live == 0
        return none if self.column is None else none | ~self.column.some_value


def _one_side(
    bound: BoundArray, certain: BoolArray, empty: BoolArray, side: Side
) -> tuple[Any, IntArray, list[Any]]:
    """The certain value; the files that could beat it, the most promising first; their bounds."""
    # In the order of promise; `~` of integers, since the least one has no opposite.
    rank = bound.numbers
    if side is Side.HIGH:
        rank = -rank if rank.dtype.kind == "f" else ~rank
    exact = certain & bound.known & ~empty if bound.exact else np.zeros(len(rank), bool)
    best = rank[exact].min() if exact.any() else None
    could = ~bound.known | ~exact
    if best is not None:
        could &= ~bound.known | (rank < best)
    rivals = np.flatnonzero(could & ~empty)
    # Files of which nothing is known have to be read in any case.
    rivals = rivals[np.lexsort((rank[rivals], bound.known[rivals]))]
    shown = [bound.value(at) for at in rivals.tolist()]
    value = None if best is None else bound.value(int(np.flatnonzero(exact & (rank == best))[0]))
    return value, rivals, shown


def _ordered_type(head: Head, name: str) -> SqlType:
    """The type of a column whose values have an order. Raises: InvalidSpec."""
    columns = Schema.from_json(head.metadata.schema_string).columns
    type_ = next(column.type for column in columns if column.name == name)
    if not type_.is_atomic:
        raise InvalidSpec(
            "values of this type have no order",
            resource=head.location,
            field="columns",
            found=f"{name}: {type_}",
            expected="a column of numbers, texts, times or booleans",
        )
    return type_


def splits_of(
    head: Head, parts: Sequence[Chosen], groups: Sequence[pa.Array] | None = None
) -> Splits:
    """The files of entries that were chosen, and their row groups; all of them by default."""
    if groups is None:
        groups = [pa.nulls(len(part.rows), GROUPS) for part in parts]
    every = pa.chunked_array(groups, GROUPS).combine_chunks()
    parts = [part for part in parts if len(part.rows)]
    if not parts:
        return Splits(head, files_.EMPTY, np.zeros(0, bool), np.zeros(0, np.int64), every)
    files = [part.entries.take(part.rows) for part in parts]
    return Splits(
        head,
        pa.concat_tables(files).combine_chunks(),
        np.concatenate([part.certain for part in parts]),
        np.concatenate([part.entries.live(part.rows) for part in parts]),
        every,
    )
