"""Merges the rows of blocks by key, as streams. Pure.

Blocks are sorted by key. So the rows of a key are complete once each block has been read beyond it,
and only rows beyond it must wait.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

Key = tuple[Any, ...]
"""The values of the key columns of a row, in a form that Python sorts as Arrow does."""


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
        if any(part.num_rows for part in parts):
            yield pa.concat_tables(part for part in parts if part.num_rows)


class _Waiting:
    """The rows of a block that were read, and are not complete by key yet."""

    def __init__(
        self, batches: Iterator[pa.RecordBatch], schema: pa.Schema, keys: Sequence[str]
    ) -> None:
        self._batches = batches
        self._keys = keys
        self.rows = schema.empty_table()
        self.done = False
        self.last: Key = ()

    def fill(self, share: int) -> None:
        """Read on, if few rows wait, or those of one key only."""
        rows = self.rows
        enough = rows.num_rows > 0 and rows.nbytes >= share // 2
        if self.done or (enough and key_at(rows, self._keys, 0) != self.last):
            return
        parts, size = [rows], 0
        while size + rows.nbytes < share or not size:
            batch = next(self._batches, None)
            if batch is None:
                self.done = True
                break
            parts.append(pa.Table.from_batches([batch]))
            size += batch.nbytes
        self.rows = pa.concat_tables(parts)
        if self.rows.num_rows:
            self.last = key_at(self.rows, self._keys, self.rows.num_rows - 1)

    def take_below(self, bound: Key | None) -> pa.Table:
        """Remove the rows whose key is less than `bound`, all without one."""
        count = self.rows.num_rows
        if bound is not None and not self.last < bound:
            rows, keys = self.rows, self._keys
            count = bisect_left(range(count), bound, key=lambda at: key_at(rows, keys, at))
        found, self.rows = self.rows.slice(0, count), self.rows.slice(count)
        return found
