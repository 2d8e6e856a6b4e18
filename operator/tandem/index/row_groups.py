"""Narrows files to the row groups that a condition needs, by facts of their footers.

A file whose facts are not there, or not believed, is needed as a whole: knowing less loses no row
(X-b). No data page is read here.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tandem.delta.schema import column_mapping_mode
from tandem.distinct import BoolArray, IntArray
from tandem.index.columns import EntryColumn
from tandem.index.facts.cache import FactsCache
from tandem.index.facts.model import UNKNOWN
from tandem.index.window import Chosen, Head
from tandem.pruning.predicate import columns_of
from tandem.statements.tree import Expr

GROUPS = pa.list_(pa.int32())
"""The row groups of a file that are needed; null for all."""


@dataclass(frozen=True)
class NeededGroups:
    """What is left of some entries.

    Attributes:
        needed: of which a row may match.
        certain: on all of whose needed row groups the condition is true.
        groups: the needed row groups of each, as `GROUPS`.
        certain_rows: live rows that match for sure, of entries without deleted rows; in `rest` are
            the row groups that are left then.
        rest: as `groups`, without those that were counted.
        open: which entries have a `rest`.
    """

    needed: BoolArray
    certain: BoolArray
    groups: pa.Array
    certain_rows: int
    rest: pa.Array
    open: BoolArray


def narrowed(head: Head, part: Chosen, where: Expr, cache: FactsCache) -> NeededGroups:
    """The row groups that a condition needs of some entries. Entries that are certain are needed as
    a whole."""
    entries, count = part.entries, len(part.rows)
    open_ = np.flatnonzero(~part.certain)
    files = entries.take(part.rows[open_]).select(["path", "size"])
    known, at = cache.of(
        files,
        entries.rows[part.rows[open_]],
        table_id=head.metadata.id,
        columns={field.physical_name for field in head.schema.fields},
    )
    there = open_[at != UNKNOWN]
    at = at[at != UNKNOWN]
    needed, certain = np.ones(count, bool), part.certain.copy()
    if known is None or not len(there):
        every = pa.nulls(count, GROUPS)
        return NeededGroups(needed, certain, every, 0, every, ~certain)
    facts = known.facts
    counts = facts.groups[at]
    schema = head.schema.without(head.metadata.partition_columns)
    by_id = column_mapping_mode(head.metadata.configuration) == "id"
    owner = np.repeat(np.arange(len(at)), counts)
    partitions = _partitions(head, part, where, there[owner])
    groups = facts.groups_of(at)
    found = known.narrow(where, schema, groups, by_id=by_id, known=partitions)
    found = known.narrow_by_filters(
        where, schema, found, cache.filters, by_id=by_id, known=partitions
    )
    may, must = found.may, found.must & found.may
    needed[there] = np.bincount(owner[may], minlength=len(at)) > 0
    certain[there] = np.bincount(owner[may & ~must], minlength=len(at)) == 0
    # Which rows of a row group a vector hides is in the vector.
    counted = must & (entries.dead[part.rows[there]] == 0)[owner]
    left = may & ~counted
    rest_of = np.bincount(owner[left], minlength=len(at)) > 0
    is_open = ~certain
    is_open[there] = rest_of
    local = groups - facts.first_group[at][owner]
    return NeededGroups(
        needed,
        certain,
        _lists(count, there, counts, owner, local, may),
        int(facts.group_rows[groups][counted].sum()),
        _lists(count, there, counts, owner, local, left),
        is_open,
    )


def _partitions(head: Head, part: Chosen, where: Expr, owners: IntArray) -> dict[str, EntryColumn]:
    """The partition columns of a condition, for each row group."""
    partitions = head.metadata.partition_columns
    found = {}
    for name, type_ in columns_of(where):
        if name in partitions:
            column = part.entries.column(name, type_, head.schema, partitions)
            if column is not None:
                found[name] = column.take(part.rows[owners])
    return found


def _lists(
    count: int, there: IntArray, counts: IntArray, owner: IntArray, local: IntArray,
    chosen: BoolArray,
) -> pa.Array:  # fmt: skip
    """The chosen row groups of each of `count` entries; null if they are all, or not known."""
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
