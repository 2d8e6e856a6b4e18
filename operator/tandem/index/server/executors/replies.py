"""Whether a reply of an executor can be believed, and what is wrong with it. Pure.

A coordinator has no facts, so it cannot judge them. It can judge what the reply is of, and whether
its numbers fit together and with the log. What is not believed costs narrowing only: the files are
left as they are.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.distinct import IntArray
from tandem.index.narrowing import NOT_KNOWN, NeededGroups
from tandem.index.server.executors.slot_messages import (
    NEEDED,
    NarrowQuestion,
    NarrowReply,
    digest,
    needed_from,
)

_MOST_GROUPS = 1 << 31


def believed(
    asked: NarrowQuestion, files: pa.Table, reply: NarrowReply, table: pa.Table
) -> NeededGroups:
    """What a reply says of the files. Raises: ValueError, which says why it is not believed."""
    if reply.table_id != asked.table_id:
        raise ValueError(f"of table {reply.table_id[:100]}, asked was {asked.table_id}")
    if reply.version != asked.of.version:
        raise ValueError(f"of version {reply.version}, asked was {asked.of.version}")
    if reply.asked != digest(asked, files):
        raise ValueError("of other files, or another condition")
    if table.schema != NEEDED:
        raise ValueError(f"columns {table.schema.names}")
    table.validate(full=True)
    for field in NEEDED:
        if field.name not in ("groups", "rest") and table[field.name].null_count:
            raise ValueError(f"nulls in {field.name}")
    # Each file once.
    places = table["file"].to_numpy()
    if len(places) != files.num_rows or (places != np.arange(files.num_rows)).any():
        raise ValueError(f"{len(places)} files, not each of the {files.num_rows} asked once")
    found = needed_from(table)
    _check(found, files["rows"].to_numpy(), files["dead"].to_numpy())
    return found


def _check(found: NeededGroups, rows: IntArray, dead: IntArray) -> None:
    """Raises: ValueError if numbers contradict each other or the log."""
    without = found.file_rows == NOT_KNOWN
    if ((found.file_rows < 0) & ~without).any() or (without != (found.group_counts < 0)).any():
        raise ValueError("a number of rows or row groups that is none")
    if ((found.file_rows != rows) & ~without & (rows != NOT_KNOWN)).any():
        raise ValueError("a file with other rows than the log says")
    if (found.group_counts >= _MOST_GROUPS).any():
        raise ValueError("too many row groups")
    of_groups = _Lists(found.groups, found.group_counts)
    of_rest = _Lists(found.rest, found.group_counts)
    if (without & ~(of_groups.whole & of_rest.whole)).any():
        raise ValueError("row groups chosen without facts")
    if not of_groups.has(of_rest):
        raise ValueError("a row group is left that is not needed")
    if (found.needed != (of_groups.counts != 0)).any():
        raise ValueError("a file is needed without a row group, or not with one")
    if (found.open != (of_rest.counts != 0)).any():
        raise ValueError("a file is open without a row group, or not with one")
    counted = found.counted
    if (counted < 0).any():
        raise ValueError("a negative number of rows")
    if (counted[(dead > 0) | without] > 0).any():
        raise ValueError("rows counted that a vector may hide, or without facts")
    if (counted[~without] > found.file_rows[~without]).any():
        raise ValueError("more rows counted than there are")
    if (found.certain & without).any():
        raise ValueError("certain without facts")
    # Row groups that are needed and not left have been counted.
    taken = of_groups.counts - of_rest.counts
    if ((taken == 0) & (counted > 0)).any():
        raise ValueError("rows counted of no row group")
    all_taken = ~without & (taken == found.group_counts)
    if (counted[all_taken] != found.file_rows[all_taken]).any():
        raise ValueError("all row groups counted, and not all rows")


class _Lists:
    """Lists of row groups; null stands for all.

    Raises: ValueError if one names a row group that is not there, or one twice.
    """

    def __init__(self, lists: pa.Array, group_counts: IntArray) -> None:
        whole = np.asarray(lists.is_null())
        lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
        values = lists.flatten()
        if values.null_count:
            raise ValueError("a row group without a number")
        numbers = values.to_numpy(zero_copy_only=False).astype(np.int64)
        owner = np.repeat(np.arange(len(lists)), lengths)
        if ((numbers < 0) | (numbers >= group_counts[owner])).any():
            raise ValueError("a row group that the file does not have")
        if ((np.diff(numbers) <= 0) & (np.diff(owner) == 0)).any():
            raise ValueError("a row group twice")
        self.whole = whole
        self.keys = owner * _MOST_GROUPS + numbers
        # Of a file without facts the number of row groups is not known; there is one at least.
        every = np.where(group_counts < 0, 1, group_counts)
        self.counts: IntArray = np.where(whole, every, lengths)

    def has(self, other: _Lists) -> bool:
        """Whether all row groups of the other are here."""
        if (other.whole & ~self.whole & (self.counts != other.counts)).any():
            return False
        owner = other.keys // _MOST_GROUPS
        open_ = ~self.whole[owner]
        return bool(np.isin(other.keys[open_], self.keys).all())
