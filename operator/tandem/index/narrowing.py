"""Narrows files that a condition leaves open to the row groups that it needs.

By what, and where, a `Narrower` decides: facts in this process, or those that executors hold. It
may know less, or nothing: that loses no row (X-b). No data page is read here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.schema import column_mapping_mode
from tandem.distinct import BoolArray, IntArray
from tandem.index.facts.cache import FactsCache
from tandem.index.facts.row_groups import UNKNOWN
from tandem.index.window import Chosen, Head
from tandem.pruning.predicate import columns_of, partition_bounds
from tandem.statements.tree import Expr

GROUPS: Final = pa.list_(pa.int32())
"""The row groups of a file that are needed; null for all."""

FILES: Final = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("rows", pa.int64()),
        ("dead", pa.int64()),
        ("partition_values", pa.map_(pa.string(), pa.string())),
    ]
)
"""Files that a condition leaves open: path as logged; physical rows, `UNKNOWN` where the log does
not say; rows that deletion vectors hide; partition values, null if the condition names none."""


class GroupMatch(IntEnum):
    """On which rows of a row group a condition is true."""

    NONE = 0
    SOME = 1
    """Perhaps on none, or on all."""
    ALL = 2


@dataclass(frozen=True)
class GroupMatches:
    """What is known of the row groups of files; null for a file without facts.

    Attributes:
        rows: lists of int64, the physical rows of each row group.
        matches: lists of int8, of each its `GroupMatch`.
    """

    rows: pa.Array
    matches: pa.Array

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def unknown(cls, count: int) -> Self:
        return cls(pa.nulls(count, pa.list_(pa.int64())), pa.nulls(count, pa.list_(pa.int8())))

    @classmethod
    def of_runs(cls, counts: IntArray, known: BoolArray, rows: IntArray, matches: IntArray) -> Self:
        """From the row groups of all files that are `known`; each has so many."""
        ends = pa.array(np.append(0, np.cumsum(counts)).astype(np.int32))
        arrays = (pa.array(rows, pa.int64()), pa.array(matches.astype(np.int8)))
        lists = (pa.ListArray.from_arrays(ends, each, mask=pa.array(~known)) for each in arrays)
        return cls(*lists)


@dataclass(frozen=True)
class NeededGroups:
    """What is left of files.

    Attributes:
        needed: of which a row may match.
        certain: on all of whose needed row groups the condition is true.
        groups: the needed row groups of each, as `GROUPS`.
        counted: live rows that match for sure, of files without deleted rows; in `rest` are
            the row groups that are left then.
        rest: as `groups`, without those that were counted.
        open: which files have a `rest`.
    """

    needed: BoolArray
    certain: BoolArray
    groups: pa.Array
    counted: IntArray
    rest: pa.Array
    open: BoolArray

    def __len__(self) -> int:
        return len(self.needed)

    @classmethod
    def of(cls, found: GroupMatches, dead: IntArray) -> Self:
        """Args: dead: rows that each file's deletion vector hides."""
        count = len(found)
        known = np.asarray(found.matches.is_valid())
        lengths = pc.fill_null(pc.list_value_length(found.matches), 0).to_numpy()
        owner = np.repeat(np.arange(count), lengths)
        match, group_rows = (each.flatten().to_numpy() for each in (found.matches, found.rows))
        local = np.arange(len(owner)) - (np.cumsum(lengths) - lengths)[owner]
        # Which rows of a row group a vector hides is in the vector.
        counted = (match == GroupMatch.ALL) & (dead == 0)[owner]
        may = match != GroupMatch.NONE
        left = may & ~counted
        rows = np.zeros(count, np.int64)
        np.add.at(rows, owner[counted], group_rows[counted])

        def any_of(chosen: BoolArray) -> BoolArray:
            return np.bincount(owner[chosen], minlength=count) > 0

        def lists(chosen: BoolArray) -> pa.Array:
            number = np.bincount(owner[chosen], minlength=count)
            whole = ~known | (number == lengths)
            ends = np.append(0, np.cumsum(np.where(whole, 0, number)))
            values = pa.array(local[chosen & ~whole[owner]].astype(np.int32))
            return pa.ListArray.from_arrays(
                pa.array(ends.astype(np.int32)), values, mask=pa.array(whole)
            )

        return cls(
            needed=~known | any_of(may),
            certain=known & ~any_of(match == GroupMatch.SOME),
            groups=lists(may),
            counted=rows,
            rest=lists(left),
            open=~known | any_of(left),
        )

    def spread(self, over: BoolArray) -> NeededGroups:
        """Over more files, of which these are those where `over` is true. Of the others nothing is
        left open, and they are needed as a whole."""
        at = pa.array(np.where(over, np.cumsum(over) - 1, 0), mask=~over)
        needed, certain, open_ = ~over, ~over, np.zeros(len(over), bool)
        counted = np.zeros(len(over), np.int64)
        for mine, every in (
            (self.needed, needed),
            (self.certain, certain),
            (self.open, open_),
            (self.counted, counted),
        ):
            every[over] = mine
        groups, rest = self.groups.take(at), self.rest.take(at)
        return NeededGroups(needed, certain, groups, counted, rest, open_)


@dataclass(frozen=True)
class Narrower:
    """Says which row groups a condition needs. Thread-safe.

    Args:
        known: what is known of the row groups of files (`FILES`), which are those of some entries.
    """

    known: Callable[[Head, Expr, pa.Table, Sequence[Chosen]], GroupMatches]

    def narrow(self, head: Head, where: Expr, parts: Sequence[Chosen]) -> list[NeededGroups]:
        """The row groups that a condition needs of some entries. Entries that are certain are
        needed as a whole."""
        open_ = [part.only(~part.certain) for part in parts]
        partitions = {*head.metadata.partition_columns}
        files = open_files(open_, any(name in partitions for name, _ in columns_of(where)))
        found = GroupMatches.unknown(0)
        if len(files):
            found = self.known(head, where, files, open_)
        whole = NeededGroups.of(found, files["dead"].to_numpy())
        ends = np.cumsum([len(part.rows) for part in open_]).tolist()
        return [
            NeededGroups(*(each[end - len(left.rows) : end] for each in vars(whole).values()))
            .spread(~part.certain)
            for part, left, end in zip(parts, open_, ends, strict=True)
        ]  # fmt: skip


def open_files(parts: Sequence[Chosen], with_partitions: bool) -> pa.Table:
    """The files of some entries, as `FILES`."""
    tables = [FILES.empty_table()]
    for part in parts:
        entries, rows = part.entries, part.rows
        found = entries.columns_at(rows, ("path", "size", "partition_values"))
        values = found["partition_values"]
        columns = [
            found["path"],
            found["size"],
            pa.array(entries.rows[rows], pa.int64()),
            pa.array(entries.dead[rows], pa.int64()),
            values if with_partitions else pa.nulls(len(rows), values.type),
        ]
        tables.append(pa.table(columns, schema=FILES))
    return pa.concat_tables(tables).combine_chunks()


def together(parts: Sequence[GroupMatches], places: Sequence[IntArray]) -> GroupMatches:
    """Parts as one.

    Args:
        places: for each file of each part its place in the result. The first part has all places;
            a later one replaces what an earlier one says.
    """
    # The last one that says something of each place.
    source = np.zeros(len(parts[0]), np.int64)
    start = 0
    for part, at in zip(parts, places, strict=True):
        source[at] = np.arange(start, start + len(part))
        start += len(part)
    taken = pa.array(source)
    return GroupMatches(
        pa.concat_arrays([part.rows for part in parts]).take(taken),
        pa.concat_arrays([part.matches for part in parts]).take(taken),
    )


def narrowed(head: Head, where: Expr, files: pa.Table, cache: FactsCache) -> GroupMatches:
    """What facts say of the row groups of files (`FILES`). A file whose facts are not there, or
    not believed, has none."""
    count = len(files)
    known, at = cache.of(
        files,
        files["rows"].to_numpy(),
        table_id=head.metadata.id,
        columns={field.physical_name for field in head.schema.fields},
    )
    there = at != UNKNOWN
    at = at[there]
    if known is None or not len(at):
        return GroupMatches.unknown(count)
    facts = known.facts
    partitions = head.metadata.partition_columns
    schema = head.schema.without(partitions)
    by_id = column_mapping_mode(head.metadata.configuration) == "id"
    counts = np.zeros(count, np.int64)
    counts[there] = facts.groups[at]
    named = {name: type_ for name, type_ in columns_of(where) if name in partitions}
    values = partition_bounds(files["partition_values"], head.schema, partitions, named)
    owner = np.repeat(np.arange(count), counts)
    of_groups = {name: column.take(owner) for name, column in values.items()}
    groups = facts.groups_of(at)
    found = known.narrow(where, schema, groups, by_id=by_id, known=of_groups, load=cache.filters)
    match = np.where(
        found.may, np.where(found.must, GroupMatch.ALL, GroupMatch.SOME), GroupMatch.NONE
    )
    return GroupMatches.of_runs(counts, there, facts.group_rows[groups], match)
