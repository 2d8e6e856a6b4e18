"""Rows of blocks by key: sorted, merged as streams, reduced to one row a key, and divided into
parts that fit into memory.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.partitions import python_values
from tandem.distinct import BoolArray, IntArray, number_rows
from tandem.errors import DuplicateKeys
from tandem.mergelog.log_table import LogSettings

# Which record of a key wins, and which records a stitched block keeps.
#
# Pure. Order is the instant; with an ordering column the greater value, then the later instant.
# NULL is the least value, NaN the greatest, and -0.0 equals 0.0, as in Spark.


@dataclass(frozen=True, slots=True)
class Records:
    """Records of a log, one entry each.

    Attributes:
        keys: the key columns.
        order: the values of the ordering column; None without one.
        instants: the instant of each record. Records of a key that have the same instant differ
            in the value of the ordering column.
        deleted: whether the record deletes its key.
    """

    keys: tuple[pa.Array, ...]
    order: pa.Array | None
    instants: IntArray
    deleted: BoolArray

    def __len__(self) -> int:
        return len(self.instants)

    @property
    def nbytes(self) -> int:
        """Bytes of the keys and of the values of the ordering column."""
        columns = self.keys if self.order is None else (*self.keys, self.order)
        return sum(int(column.nbytes) for column in columns)

    def take(self, at: IntArray) -> Records:
        places = pa.array(at)
        return Records(
            tuple(key.take(places) for key in self.keys),
            None if self.order is None else self.order.take(places),
            self.instants[at],
            self.deleted[at],
        )


def concatenate(parts: Sequence[Records]) -> Records:
    """The records of all parts, one after the other; there must be a part."""
    columns = zip(*(part.keys for part in parts), strict=True)
    orders = [part.order for part in parts if part.order is not None]
    return Records(
        tuple(pa.concat_arrays(column) for column in columns),
        pa.concat_arrays(orders) if orders else None,
        np.concatenate([part.instants for part in parts]),
        np.concatenate([part.deleted for part in parts]),
    )


def in_force(records: Records, mark: int) -> IntArray:
    """Indexes of the records that the view depends on: those after the mark, and with an ordering
    column all deletes."""
    after = records.instants > mark
    if records.order is not None:
        after |= records.deleted
    return np.flatnonzero(after)


def winners(records: Records) -> IntArray:
    """The index of the record that wins for each key, in ascending order of the indexes."""
    if not len(records):
        return np.empty(0, np.int64)
    keys = number_keys(records.keys)
    ranks = np.zeros(len(records), np.int64) if records.order is None else rank(records.order)
    order = np.lexsort((records.instants, ranks, keys))
    last = np.append(keys[order][1:] != keys[order][:-1], True)
    return np.sort(order[last])


def kept_by_stitching(records: Records, mark: int, expired: int = -1) -> IntArray:
    """Indexes of the records that a stitched block keeps, in ascending order.

    Keeps a record unless a later one of its key beats it, so that the block is right for every
    mark. A delete is beaten by deletes only: with an ordering column it stays in force after a
    merge, when greater upserts are no longer records. Drops what no view needs once
    `mark` is recorded: upserts up to it, and deletes up to the instant `expired`, or up to the mark
    without an ordering column.
    """
    if not len(records):
        return np.empty(0, np.int64)
    keys = number_keys(records.keys)
    order = np.lexsort((records.instants, keys))[::-1]
    first = np.append(True, keys[order][1:] != keys[order][:-1])
    if records.order is None:
        return np.sort(order[first & (records.instants[order] > mark)])
    deleted, instants = records.deleted[order], records.instants[order]
    ranks = rank(records.order)[order]
    of_all = _greatest_before(ranks, first)
    of_deletes = _greatest_before(np.where(deleted, ranks, -2), first)
    stays = ranks > np.where(deleted, of_deletes, of_all)
    useful = instants > np.where(deleted, min(mark, expired), mark)
    return np.sort(order[stays & useful])


def _greatest_before(ranks: IntArray, first: BoolArray) -> IntArray:
    """For each entry the greatest of the ranks before it in its group, -2 at the start of a group.
    `first` is set where a group starts; ranks are at least -2."""
    # Groups are counted upwards and weigh more than any rank, so one pass serves all of them.
    span = np.int64(ranks.max()) + 3
    groups = (np.cumsum(first) - 1) * span
    greatest = np.maximum.accumulate(groups + ranks + 2)
    found: IntArray = np.where(first, -2, np.append(np.int64(0), greatest[:-1]) - groups - 2)
    return found


def wide(column: pa.ChunkedArray) -> pa.Array:
    """The column as one array, with room for more than 2 GiB of texts or bytes."""
    type_ = column.type
    if pa.types.is_string(type_):
        column = column.cast(pa.large_string())
    elif pa.types.is_binary(type_):
        column = column.cast(pa.large_binary())
    return column.combine_chunks()


def sorted_order(columns: Sequence[pa.Array]) -> pa.Array:
    """Indexes that sort rows by these columns, ascending."""
    # By names of our own: Arrow takes one that begins with a dot for a path.
    names = [str(at) for at in range(len(columns))]
    rows = pa.RecordBatch.from_arrays(list(columns), names=names)
    return pc.sort_indices(rows, sort_keys=[(name, "ascending") for name in names])


def number_keys(keys: Sequence[pa.Array]) -> IntArray:
    """Numbers of the keys: equal keys, and only they, have equal numbers."""
    codes = [column.dictionary_encode("encode").indices.to_numpy() for column in keys]
    return number_rows([code.astype(np.int64) for code in codes])[0]


def rank(values: pa.Array) -> IntArray:
    """Dense ranks of values in their order, from 0; NULL has rank -1."""
    if pa.types.is_floating(values.type):
        # Adding zero turns -0.0 into 0.0. Arrow sorts NaN after all numbers, but distinguishes NaNs
        # by their bits.
        values = pc.add(values, pa.scalar(0, values.type))
        values = pc.if_else(pc.is_nan(values), pa.scalar(math.nan, values.type), values)
    encoded = values.dictionary_encode()
    ascending = pc.sort_indices(encoded.dictionary).to_numpy()
    ranks = np.empty(len(ascending) + 1, np.int64)
    ranks[ascending] = np.arange(len(ascending))
    ranks[-1] = -1
    found: IntArray = ranks[encoded.indices.fill_null(-1).to_numpy()]
    return found


class KeyIndex:
    """Finds the places of keys. `keys` are distinct and contain no NULL."""

    def __init__(self, keys: Sequence[pa.Array]) -> None:
        self._values = [column.unique() for column in keys]
        self._steps: list[IntArray] = []
        codes = [
            self._codes(column, values) for column, values in zip(keys, self._values, strict=True)
        ]
        numbers = codes[0]  # from 0 without gaps, in each step
        for column, values in zip(codes[1:], self._values[1:], strict=True):
            pairs, numbers = np.unique(numbers * len(values) + column, return_inverse=True)
            self._steps.append(pairs)
        self._places: IntArray = np.empty(len(numbers), np.int64)
        self._places[numbers] = np.arange(len(numbers))

    @staticmethod
    def _codes(column: pa.Array, values: pa.Array) -> IntArray:
        """The index of each value in `values`, -1 if it is not among them."""
        found = pc.index_in(column.cast(values.type), value_set=values, skip_nulls=True)
        codes: IntArray = found.fill_null(-1).to_numpy().astype(np.int64)
        return codes

    def find(self, keys: Sequence[pa.Array]) -> IntArray:
        """For each key its place among the keys of the index, -1 if it is not there."""
        if not len(self._places):
            return np.full(len(keys[0]), -1, np.int64)
        numbers = self._codes(keys[0], self._values[0])
        for column, values, pairs in zip(keys[1:], self._values[1:], self._steps, strict=True):
            codes = self._codes(column, values)
            wanted = numbers * len(values) + codes
            at = np.minimum(np.searchsorted(pairs, wanted), len(pairs) - 1)
            known = (numbers >= 0) & (codes >= 0) & (pairs[at] == wanted)
            numbers = np.where(known, at, -1).astype(np.int64)
        found: IntArray = self._places[numbers]
        found[numbers < 0] = -1
        return found


class Comparison(NamedTuple):
    """Rows whose key has a winner; the entries of all fields correspond.

    `rows` and `winners` are indexes; `hidden` says that the winner hides the row, `greater` that
    the row is greater than the winner, which is then not shown.
    """

    rows: IntArray
    winners: IntArray
    hidden: BoolArray
    greater: BoolArray


@dataclass(frozen=True, slots=True)
class Overlay:
    """The winners of a log, and what they do to rows of the base table.

    `records` are the winners; `beaten` is set for each winner that a greater row of the base table
    was found for.
    """

    records: Records
    mark: int
    index: KeyIndex
    beaten: BoolArray

    @classmethod
    def of(cls, won: Records, mark: int) -> Overlay:
        return cls(won, mark, KeyIndex(won.keys), np.zeros(len(won), bool))

    def compare(self, keys: Sequence[pa.Array], order: pa.Array | None) -> Comparison:
        """Compare rows of the base table with the winners of their keys.

        Args:
            keys, order: the key columns and the ordering column of the rows.
        """
        found = self.index.find(keys)
        rows = np.flatnonzero(found >= 0)
        winner = found[rows]
        if self.records.order is None or order is None or not len(rows):
            every = np.ones(len(rows), bool)
            return Comparison(rows, winner, every, ~every)
        of_records = self.records.order.take(pa.array(winner))
        both = pa.concat_arrays([order.take(pa.array(rows)).cast(of_records.type), of_records])
        ranks = rank(both)
        of_rows, of_winners = ranks[: len(rows)], ranks[len(rows) :]
        newer = self.records.instants[winner] > self.mark
        hidden = (of_rows < of_winners) | ((of_rows == of_winners) & newer)
        return Comparison(rows, winner, hidden, of_rows > of_winners)

    @property
    def shown(self) -> IntArray:
        """Indexes of the winners that the view shows, once all rows of the base were probed."""
        return np.flatnonzero(~self.records.deleted & ~self.beaten)


# Reduces rows that are sorted by key to one row a key. Pure.
#
# The row with the greatest value of the ordering column wins. Where that value occurs twice, or
# there is no ordering column, nothing says which row wins: such keys are counted, and some shown.


@dataclass(slots=True)
class Repeated:
    """The number of keys that occurred more than once, and the first few of them as text."""

    keys: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, other: Repeated) -> None:
        self.keys += other.keys
        self.examples = [*self.examples, *other.examples][:EXAMPLES]


class UniqueRows:
    """Takes the rows in parts. The rows of the last key of a part are kept, since the next part
    may have more of them: two are enough, the greatest ones.

    Args:
        alike: whether rows have no other columns than those that decide: then it does not matter
            which of several equal ones wins.
    """

    def __init__(self, settings: LogSettings, *, alike: bool = False) -> None:
        self._settings = settings
        self._alike = alike
        self._held: pa.Table | None = None
        self.repeated = Repeated()

    def take(self, rows: pa.Table) -> pa.Table | None:
        """The rows of the keys that are complete."""
        if self._held is not None:
            rows = pa.concat_tables([self._held, rows])
        if not rows.num_rows:
            return None
        rows = rows.combine_chunks()
        keys, ranks = self._numbers(rows)
        start = int(np.argmax(keys == keys[-1]))
        greatest = np.argsort(ranks[start:], kind="stable")[-2:] + start
        self._held = rows.take(pa.array(greatest))
        return self._reduced(rows.slice(0, start), keys[:start], ranks[:start])

    def finish(self) -> pa.Table | None:
        """The row of the last key."""
        if self._held is None:
            return None
        held, self._held = self._held.combine_chunks(), None
        return self._reduced(held, *self._numbers(held))

    def _numbers(self, rows: pa.Table) -> tuple[IntArray, IntArray]:
        """The number of each row's key, and the rank of its value of the ordering column."""
        settings = self._settings
        keys = number_keys([rows[key].combine_chunks() for key in settings.keys])
        if not settings.ordered:
            return keys, np.zeros(len(keys), np.int64)
        return keys, rank(rows[settings.ordering_column].combine_chunks())

    def _reduced(self, rows: pa.Table, keys: IntArray, ranks: IntArray) -> pa.Table:
        greatest = greatest_rows(keys, ranks)
        if not self._alike:
            shown = rows.take(pa.array(greatest.tied[: EXAMPLES - len(self.repeated.examples)]))
            keys_shown = [shown[key].combine_chunks() for key in self._settings.keys]
            examples = key_texts(keys_shown, self._settings)
            self.repeated.add(Repeated(len(greatest.tied), examples))
        return rows.take(pa.array(greatest.rows))


# The greatest row of each key, and the keys that occur twice where no ordering column decides.
# Pure.


EXAMPLES: Final = 3
"""How many of the keys are shown."""
_LONGEST: Final = 80
"""Characters of a value that are shown."""


class Greatest(NamedTuple):
    """Indexes of rows, ascending. `rows` has one for each key, of the greatest rank; `tied` are
    those of them whose rank another row of the key has, too."""

    rows: IntArray
    tied: IntArray


def greatest_rows(keys: IntArray, ranks: IntArray) -> Greatest:
    order = np.lexsort((ranks, keys))
    keys, ranks = keys[order], ranks[order]
    repeated = keys[1:] == keys[:-1]
    last = np.append(~repeated, True)[: len(keys)]
    tie = np.append(False, repeated & (ranks[1:] == ranks[:-1]))[: len(keys)]
    return Greatest(np.sort(order[last]), np.sort(order[last & tie]))


def undecided(records: Records) -> IntArray:
    """Indexes of records, one for each key of which several have the greatest value of the
    ordering column; ascending."""
    if not len(records):
        return np.empty(0, np.int64)
    keys = number_keys(records.keys)
    ranks = np.zeros(len(records), np.int64) if records.order is None else rank(records.order)
    return greatest_rows(keys, ranks).tied


def require_decided(records: Records, settings: LogSettings, location: str) -> None:
    """Raises: DuplicateKeys, if no order decides which record of a key wins."""
    found = undecided(records)
    if not len(found):
        return
    texts = key_texts(records.take(found[:EXAMPLES]).keys, settings)
    rest = len(found) - len(texts)
    raise DuplicateKeys(
        "several rows of an append have the same key",
        resource=location,
        field=", ".join(settings.keys),
        found="; ".join(texts)[:300] + (f"; {rest} more" if rest else ""),
        expected=f"rows of a key that differ in {settings.ordering_column}"
        if settings.ordered
        else "one row of each key, since rows have no order here",
        remedy="Keep one row of each key and retry; nothing was committed",
    )


def key_texts(keys: Sequence[pa.Array], settings: LogSettings) -> list[str]:
    """Keys as texts of a message. The columns are those of `settings.keys`."""
    rows = zip(*map(python_values, keys), strict=True)
    return [
        ", ".join(
            f"{name} = {str(value)[:_LONGEST]}"
            for name, value in zip(settings.keys, row, strict=True)
        )
        for row in rows
    ]


# Divides keys into parts of about the same size, for a log whose index exceeds the memory.
#
# Pure. Equal keys are in one part, whatever file they were read from.


MEMORY: Final = 1 << 28
"""Bytes that the index of a log takes by default."""
MOST_PARTS: Final = 4096
"""Each part costs a pass over the keys of log and base table; beyond, memory is exceeded."""

_Hashes = npt.NDArray[np.uint64]
_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio
_PRIME: Final = np.uint64(0x100000001B3)


def parts_of_keys(keys: Sequence[pa.Array], parts: int) -> IntArray:
    """The part of each key, from 0 to `parts` - 1."""
    hashes = np.zeros(len(keys[0]), np.uint64)
    for column in keys:
        hashes = _mixed(hashes * _PRIME + _hashes(column))
    found: IntArray = (_mixed(hashes) % np.uint64(parts)).astype(np.int64)
    return found


def _mixed(hashes: _Hashes) -> _Hashes:
    mixed: _Hashes = (hashes ^ (hashes >> np.uint64(32))) * _MULTIPLIER
    mixed ^= mixed >> np.uint64(29)
    return mixed


def _hashes(column: pa.Array) -> _Hashes:
    """A number for each value, equal for equal values."""
    type_ = column.type
    if type_ in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
        return _hashes_of_bytes(column.cast(pa.large_binary()))
    if pa.types.is_decimal(type_):
        return _hashes_of_bytes(column.cast(pa.string()).cast(pa.large_binary()))
    if pa.types.is_timestamp(type_):
        column = column.cast(pa.int64())
    elif pa.types.is_date32(type_):
        column = column.cast(pa.int32())
    elif pa.types.is_boolean(type_):
        column = column.cast(pa.int8())
    values = column.to_numpy(zero_copy_only=False).astype(np.int64)
    hashes: _Hashes = values.view(np.uint64)
    return hashes


def _hashes_of_bytes(column: pa.Array) -> _Hashes:
    """Sums of the bytes of each value, each times a number that depends on its place."""
    lengths = pc.binary_length(column).to_numpy().astype(np.int64)
    text = np.frombuffer(b"".join(column.to_pylist()), np.uint8).astype(np.uint64)
    ends = np.cumsum(lengths)
    places = np.arange(len(text)) - np.repeat(ends - lengths, lengths)
    terms = (text + np.uint64(1)) * _mixed((places + 1).astype(np.uint64))
    sums = np.append(np.uint64(0), np.cumsum(terms, dtype=np.uint64))
    found: _Hashes = sums[ends] - sums[ends - lengths] + lengths.astype(np.uint64)
    return found


# Merges the rows of blocks by key, as streams. Pure.
#
# Blocks are sorted by key. So the rows of a key are complete once each block has been read beyond
# it, and only rows beyond it must wait.


Key = tuple[Any, ...]
"""The values of the key columns of a row, in a form that Python sorts as Arrow does."""


class Unsorted(ValueError):
    """Rows that should be sorted by key are not."""


def key_at(rows: pa.Table, keys: Sequence[str], at: int) -> Key:
    """The key of a row, which has no NULL."""
    return tuple(_comparable(rows[key][at]) for key in keys)


def _comparable(value: Any) -> Any:
    is_, type_ = pa.types, value.type
    if is_.is_string(type_) or is_.is_binary(type_):
        return value.as_buffer().to_pybytes()
    # Python has no dates beyond the year 9999.
    return value.value if is_.is_date(type_) or is_.is_timestamp(type_) else value.as_py()


def parts_by_key(
    blocks: Sequence[Iterator[pa.RecordBatch]], schema: pa.Schema, keys: Sequence[str], memory: int
) -> Iterator[pa.Table]:
    """The rows of all blocks in parts: each has all rows of its keys, in no order, and the keys of
    the next part are greater.

    Args:
        blocks: the rows of each, in its order.
        memory: bytes of rows that wait, about.
    Raises: Unsorted, but not in each case: compare the keys of the parts.
    """
    share = memory // max(len(blocks), 1)
    waiting = [_Waiting(batches, schema, keys) for batches in blocks]
    while True:
        for each in waiting:
            each.fill(share)
        waiting = [each for each in waiting if each.rows.num_rows]
        if not waiting:
            return
        bound = min((each.last for each in waiting if not each.done), default=None)
        parts = [each.take_below(bound) for each in waiting]
        found = [part for part in parts if part is not None]
        if found:
            yield pa.concat_tables(found)


class _Waiting:
    """The rows of a block that were read, and are not complete by key yet: their size in bytes, and
    the keys of the first and the last one."""

    def __init__(
        self, batches: Iterator[pa.RecordBatch], schema: pa.Schema, keys: Sequence[str]
    ) -> None:
        self._batches = batches
        self._keys = keys
        self._set(schema.empty_table())
        self.done = False

    def _set(self, rows: pa.Table) -> None:
        self.rows, self._size = rows, rows.nbytes
        if rows.num_rows:
            self._first = key_at(rows, self._keys, 0)
            self.last = key_at(rows, self._keys, rows.num_rows - 1)
            if self.last < self._first:
                raise Unsorted

    def fill(self, share: int) -> None:
        """Read on, if few rows wait, or those of one key only."""
        enough = self.rows.num_rows > 0 and self._size >= share // 2
        if self.done or (enough and self._first != self.last):
            return
        parts, size = [self.rows], 0
        while self._size + size < share or not size:
            batch = next(self._batches, None)
            if batch is None:
                self.done = True
                break
            parts.append(pa.Table.from_batches([batch]))
            size += batch.nbytes
        self._set(pa.concat_tables(parts))

    def take_below(self, bound: Key | None) -> pa.Table | None:
        """Remove the rows whose key is less than `bound`, all without one; None if there are
        none."""
        rows, keys = self.rows, self._keys
        if bound is None or self.last < bound:
            self._set(rows.slice(rows.num_rows))
            return rows
        if not self._first < bound:
            return None
        count = bisect_left(range(rows.num_rows), bound, key=lambda at: key_at(rows, keys, at))
        self._set(rows.slice(count))
        return rows.slice(0, count)
