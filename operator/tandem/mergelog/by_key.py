"""Rows of blocks by key: sorted, merged as streams, reduced to one row a key, and divided into
parts that fit into memory.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.partitions import python_values
from tandem.distinct import IntArray
from tandem.errors import DuplicateKeys
from tandem.mergelog.log_table import LogSettings
from tandem.mergelog.records import Records, number_keys, rank

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
_COLUMNS: Final = 5
"""Columns of a row that are shown."""


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


def row_text(row: pa.RecordBatch) -> str:
    """The values of the first columns of one row, for a message."""
    names = row.column_names[:_COLUMNS]
    values = [python_values(row.column(name))[0] for name in names]
    return ", ".join(
        f"{name} = {'NULL' if value is None else str(value)[:_LONGEST]}"
        for name, value in zip(names, values, strict=True)
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
