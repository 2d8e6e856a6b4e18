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
