"""What narrowing takes and gives: of files that a condition leaves open, the row groups that it
needs. Pure.

By what, and where, a `Narrower` decides: facts in this process, or those that executors hold. It
may know less, or nothing: that loses no row (X-b).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Self

import numpy as np
import pyarrow as pa

from tandem.delta.schema import column_mapping_mode
from tandem.distinct import BoolArray, IntArray
from tandem.index.facts.cache import FactsCache
from tandem.index.facts.row_groups import UNKNOWN
from tandem.index.window import Chosen, Head
from tandem.pruning.bounds import HeldBounds
from tandem.pruning.predicate import columns_of
from tandem.statements.tree import Expr

GROUPS: Final = pa.list_(pa.int32())
"""The row groups of a file that are needed; null for all."""

NOT_KNOWN: Final = -1

_VALUES = "partition_values"


@dataclass(frozen=True)
class OpenFiles:
    """Files that a condition leaves open by what the log says.

    Attributes:
        names: `path` as logged, and `size`.
        rows: physical rows, `NOT_KNOWN` where the log does not say.
        dead: rows that deletion vectors hide.
        partitions: bounds of the partition columns that the condition names.
        values: the partition values of the files as logged; None if it names none.
        source: the entries that the files are of, where these are held; their order is that of the
            files.
    """

    names: pa.Table
    rows: IntArray
    dead: IntArray
    partitions: Mapping[str, HeldBounds]
    values: pa.ChunkedArray | None = None
    source: Chosen | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def of(cls, head: Head, where: Expr, part: Chosen) -> Self:
        """Those of some entries that are not certain."""
        open_ = part.rows[~part.certain]
        partitions = head.metadata.partition_columns
        columns: dict[str, HeldBounds] = {}
        for name, type_ in columns_of(where):
            if name in partitions:
                column = part.entries.column(name, type_, head.schema, partitions)
                if column is not None:
                    columns[name] = column.take(open_)
        return cls(
            part.entries.columns_at(open_, ("path", "size")),
            part.entries.rows[open_],
            part.entries.dead[open_],
            columns,
            part.entries.columns_at(open_, (_VALUES,))[_VALUES] if columns else None,
            Chosen(part.entries, open_, np.zeros(len(open_), bool)),
        )


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
        file_rows, group_counts: physical rows and row groups by the facts that decided;
            `NOT_KNOWN` if there were none, and the file is needed as a whole.
    """

    needed: BoolArray
    certain: BoolArray
    groups: pa.Array
    counted: IntArray
    rest: pa.Array
    open: BoolArray
    file_rows: IntArray
    group_counts: IntArray

    def __len__(self) -> int:
        return len(self.needed)

    @classmethod
    def every(cls, count: int) -> Self:
        """Files of which no facts are known."""
        yes, none = np.ones(count, bool), pa.nulls(count, GROUPS)
        unknown = np.full(count, NOT_KNOWN)
        return cls(yes, ~yes, none, np.zeros(count, np.int64), none, yes, unknown, unknown)

    def part(self, start: int, stop: int) -> NeededGroups:
        """Those of files `start` to `stop` (excluded)."""
        return NeededGroups(*(each[start:stop] for each in vars(self).values()))

    def spread(self, over: BoolArray) -> NeededGroups:
        """Over more files, of which these are those where `over` is true. Of the others nothing is
        left open, and they are needed as a whole."""
        whole = NeededGroups.every(len(over))
        at = pa.array(np.where(over, np.cumsum(over) - 1, 0), mask=~over)
        for mine, all_ in (
            (self.needed, whole.needed),
            (self.counted, whole.counted),
            (self.file_rows, whole.file_rows),
            (self.group_counts, whole.group_counts),
        ):
            all_[over] = mine
        certain, open_ = ~over, np.zeros(len(over), bool)
        certain[over], open_[over] = self.certain, self.open
        return NeededGroups(
            whole.needed,
            certain,
            self.groups.take(at),
            whole.counted,
            self.rest.take(at),
            open_,
            whole.file_rows,
            whole.group_counts,
        )


class Narrower(ABC):
    """Says which row groups a condition needs. Thread-safe."""

    def narrow(self, head: Head, where: Expr, parts: Sequence[Chosen]) -> list[NeededGroups]:
        """The row groups that a condition needs of some entries. Entries that are certain are
        needed as a whole."""
        open_ = [part for part in parts if not part.certain.all()]
        files = [OpenFiles.of(head, where, part) for part in open_]
        found = iter(self.narrow_files(head, where, files) if files else ())
        nothing = NeededGroups.every(0)
        return [
            (nothing if part.certain.all() else next(found)).spread(~part.certain) for part in parts
        ]

    @abstractmethod
    def narrow_files(
        self, head: Head, where: Expr, files: Sequence[OpenFiles]
    ) -> Sequence[NeededGroups]:
        """For each of `files` what is needed of it. What is not known is `NeededGroups.every`."""


def together(parts: Sequence[NeededGroups], places: Sequence[IntArray]) -> NeededGroups:
    """Parts as one.

    Args:
        places: for each file of each part its place in the result. The first part has all places;
            a later one replaces what an earlier one says.
    """
    count = len(parts[0])
    # The last one that says something of each place.
    source = np.zeros(count, np.int64)
    start = 0
    for part, at in zip(parts, places, strict=True):
        source[at] = np.arange(start, start + len(part))
        start += len(part)
    taken = pa.array(source)
    return NeededGroups(
        needed=np.concatenate([part.needed for part in parts])[source],
        certain=np.concatenate([part.certain for part in parts])[source],
        groups=pa.concat_arrays([part.groups for part in parts]).take(taken),
        counted=np.concatenate([part.counted for part in parts])[source],
        rest=pa.concat_arrays([part.rest for part in parts]).take(taken),
        open=np.concatenate([part.open for part in parts])[source],
        file_rows=np.concatenate([part.file_rows for part in parts])[source],
        group_counts=np.concatenate([part.group_counts for part in parts])[source],
    )


# Narrows files to the row groups that a condition needs, by facts of their footers.
#
# A file whose facts are not there, or not believed, is needed as a whole: knowing less loses no
# row (X-b). No data page is read here.


class LocalNarrower(Narrower):
    """By facts that this process holds."""

    def __init__(self, facts: FactsCache) -> None:
        self._facts = facts

    def narrow_files(
        self, head: Head, where: Expr, files: Sequence[OpenFiles]
    ) -> list[NeededGroups]:
        return [narrowed(head, where, each, self._facts) for each in files]


def narrowed(head: Head, where: Expr, files: OpenFiles, cache: FactsCache) -> NeededGroups:
    """The row groups that a condition needs of files."""
    count = len(files)
    known, at = cache.of(
        files.names,
        files.rows,
        table_id=head.metadata.id,
        columns={field.physical_name for field in head.schema.fields},
    )
    there = np.flatnonzero(at != UNKNOWN)
    at = at[there]
    if known is None or not len(there):
        return NeededGroups.every(count)
    facts = known.facts
    counts = facts.groups[at]
    schema = head.schema.without(head.metadata.partition_columns)
    by_id = column_mapping_mode(head.metadata.configuration) == "id"
    owner = np.repeat(np.arange(len(at)), counts)
    partitions = {name: column.take(there[owner]) for name, column in files.partitions.items()}
    groups = facts.groups_of(at)
    found = known.narrow(where, schema, groups, by_id=by_id, known=partitions)
    found = known.narrow_by_filters(
        where, schema, found, cache.filters, by_id=by_id, known=partitions
    )
    may, must = found.may, found.must & found.may
    # Which rows of a row group a vector hides is in the vector.
    counted = must & (files.dead[there] == 0)[owner]
    left = may & ~counted
    local = groups - facts.first_group[at][owner]
    needed, open_ = np.ones(count, bool), np.ones(count, bool)
    certain, rows = np.zeros(count, bool), np.zeros(count, np.int64)
    needed[there] = np.bincount(owner[may], minlength=len(at)) > 0
    open_[there] = np.bincount(owner[left], minlength=len(at)) > 0
    certain[there] = np.bincount(owner[may & ~must], minlength=len(at)) == 0
    np.add.at(rows, there[owner[counted]], facts.group_rows[groups][counted])
    physical, numbers = np.full(count, UNKNOWN), np.full(count, UNKNOWN)
    physical[there], numbers[there] = facts.rows[at], counts
    return NeededGroups(
        needed,
        certain,
        _lists(count, there, counts, owner, local, may),
        rows,
        _lists(count, there, counts, owner, local, left),
        open_,
        physical,
        numbers,
    )


def _lists(
    count: int, there: IntArray, counts: IntArray, owner: IntArray, local: IntArray,
    chosen: BoolArray,
) -> pa.Array:  # fmt: skip
    """The chosen row groups of each of `count` files; null if they are all, or not known."""
    numbers = np.zeros(count, np.int64)
    numbers[there] = np.bincount(owner[chosen], minlength=len(there))
    whole = np.ones(count, bool)
    whole[there] = numbers[there] == counts
    # Values of lists that are null are left out, too.
    values = local[chosen & ~whole[there][owner]]
    lengths = np.where(whole, 0, numbers)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(
        pa.array(offsets), pa.array(values.astype(np.int32)), mask=pa.array(whole)
    )
