"""Narrows files to the row groups that a condition needs, by facts of their footers.

A file whose facts are not there, or not believed, is needed as a whole: knowing less loses no row
(X-b). No data page is read here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tandem.delta.schema import column_mapping_mode
from tandem.distinct import BoolArray, IntArray
from tandem.index.facts.cache import FactsCache
from tandem.index.facts.model import UNKNOWN
from tandem.index.narrowing import Narrower, NeededGroups, OpenFiles
from tandem.index.window import Head
from tandem.statements.tree import Expr


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
