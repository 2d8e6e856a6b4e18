"""Which record of a key wins, and which records a stitched block keeps.

Pure. Order is the instant; with an ordering column the greater value, then the later instant. NULL
is the least value, NaN the greatest, and -0.0 equals 0.0, as in Spark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.distinct import BoolArray, IntArray, number_rows


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
