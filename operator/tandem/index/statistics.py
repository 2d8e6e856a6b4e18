"""What the log says of the rows of many files: held compressed, and decoded by column. Pure: no
file is read here.

    texts   texts that are seldom read, compressed
    held    the statistics of entries
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta import stats as stats_
from tandem.delta.schema import PrimitiveType, StructType
from tandem.distinct import BoolArray, IntArray
from tandem.pruning.bounds import HeldBounds, concatenated, statistics_type
from tandem.pruning.files import stated_bounds
from tandem.statements.types import SqlType, type_named

# Texts of many entries that are seldom read, compressed in blocks of neighbours. Pure.


BLOCK: Final = 512
"""Texts of a block: enough to compress well."""
_NULL: Final = -1
_LEVEL: Final = 1


class PackedTexts:
    """An array of texts, null where there is none.

    A block is the lengths of its texts as 32-bit numbers, -1 for null, and then their bytes.

    Args:
        count: of texts.
        data: the compressed blocks, one after the other.
        starts: where in `data` each of them begins, and where the last one ends.
        sizes: bytes of each block when it is not compressed.
    """

    def __init__(self, count: int, data: pa.Buffer, starts: IntArray, sizes: IntArray) -> None:
        self._count, self.data, self.starts, self.sizes = count, data, starts, sizes

    @classmethod
    def of(cls, texts: pa.ChunkedArray) -> PackedTexts:
        return cls.streamed(texts.chunks)

    @classmethod
    def streamed(cls, runs: Iterable[pa.Array]) -> PackedTexts:
        """The texts of all runs, of which few are in memory together."""
        codec = pa.Codec("zstd", _LEVEL)
        packed: list[bytes] = []
        sizes: list[int] = []
        count = 0
        for piece in _whole_blocks(runs):
            count += len(piece)
            for block in _blocks(piece):
                packed.append(codec.compress(block, asbytes=True))
                sizes.append(len(block))
        starts = np.zeros(len(packed) + 1, np.int64)
        np.cumsum([len(each) for each in packed], out=starts[1:])
        return cls(count, pa.py_buffer(b"".join(packed)), starts, np.array(sizes, np.int64))

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        return int(self.data.size) + self.starts.nbytes + self.sizes.nbytes

    def validate(self) -> None:
        """Raises: ValueError, OSError if some are no texts."""
        for run in self.runs():
            run.validate(full=True)

    def slice(self, start: int, stop: int) -> pa.Array:
        """Texts `start` to `stop` (excluded)."""
        if stop <= start:
            return pa.array([], pa.string())
        first = start // BLOCK
        whole = self._blocks_at(range(first, (stop - 1) // BLOCK + 1))
        return whole.slice(start - first * BLOCK, stop - start)

    def runs(self) -> Iterator[pa.Array]:
        """All texts, some at a time."""
        for start, stop in pieces(self._count):
            yield self.slice(start, stop)

    def filter(self, keep: BoolArray) -> PackedTexts:
        """Those where `keep` is true."""
        return PackedTexts.streamed(
            self.slice(start, stop).filter(pa.array(keep[start:stop]))
            for start, stop in pieces(self._count)
        )

    def _blocks_at(self, numbers: range) -> pa.Array:
        """The texts of some blocks. Raises: ValueError, OSError if they are none."""
        lengths, contents = [], []
        for number in numbers:
            start, stop = int(self.starts[number]), int(self.starts[number + 1])
            packed = self.data.slice(start, stop - start)
            block = pa.decompress(packed, int(self.sizes[number]), codec="zstd")
            count = min(BLOCK, self._count - number * BLOCK)
            lengths.append(np.frombuffer(block, np.int32, count))
            contents.append(memoryview(block)[4 * count :])
        length = np.concatenate(lengths)
        content = b"".join(contents)
        offsets = np.zeros(len(length) + 1, np.int64)
        np.cumsum(np.maximum(length, 0), out=offsets[1:])
        if offsets[-1] != len(content):
            raise ValueError(f"{len(content)} bytes of texts of {offsets[-1]}")
        nulls = length == _NULL
        valid = pa.py_buffer(np.packbits(~nulls, bitorder="little")) if nulls.any() else None
        ends = pa.py_buffer(offsets.astype(np.int32))
        return pa.Array.from_buffers(pa.string(), len(length), [valid, ends, pa.py_buffer(content)])


def pieces(count: int, size: int = 65_536) -> Iterator[tuple[int, int]]:
    """Ranges of whole blocks that cover so many texts."""
    for start in range(0, count, size):
        yield start, min(start + size, count)


def _whole_blocks(runs: Iterable[pa.Array]) -> Iterator[pa.Array]:
    """The same texts in arrays of whole blocks; only the last one has another number."""
    left = pa.array([], pa.string())
    for run in runs:
        for start, stop in pieces(len(run)):
            left = pa.concat_arrays([left, run.slice(start, stop - start)])
            whole = len(left) // BLOCK * BLOCK
            if whole:
                yield left.slice(0, whole)
                left = left.slice(whole)
    if len(left):
        yield left


def _blocks(piece: pa.Array) -> Iterator[bytes]:
    # What a null hides is not kept.
    texts = pc.fill_null(piece, "")
    _, ends, data = texts.buffers()
    offsets = np.frombuffer(ends, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    lengths = np.diff(offsets)
    lengths[np.asarray(piece.is_null())] = _NULL
    content = memoryview(data) if data is not None else memoryview(b"")
    for first in range(0, len(piece), BLOCK):
        last = min(first + BLOCK, len(piece))
        yield lengths[first:last].tobytes() + bytes(content[offsets[first] : offsets[last]])


# The statistics of many files: JSON texts, decoded by column when a condition first names one.
#
# Pure. Decoded a piece at a time and in several threads, so that it takes little memory beside the
# result. Thread-safe.


ColumnName = tuple[str, SqlType]
"""A column's physical name, by which a renamed one is the same, and its type."""

_T = TypeVar("_T")

UNKNOWN: Final = -1
"""A number of rows that is not known."""

_PLAIN: Final = 8_192
"""So few texts are kept as they are."""
_FEW_TEXTS: Final = 64
"""So few are parsed one by one for their numbers of rows, since Arrow takes longer to begin."""
_FEW: Final = 4
"""If a table has no more columns with statistics, all are decoded at once: parsing the texts takes
as long as two of them."""


class HeldStatistics:
    """Statistics in the order of entries.

    Args:
        texts: as in `Snapshot.files`.
        rows, tight, columns: what is known of them without looking.
    """

    def __init__(
        self,
        texts: pa.ChunkedArray | PackedTexts,
        *,
        rows: IntArray | None = None,
        tight: BoolArray | None = None,
        columns: Mapping[ColumnName, HeldBounds | None] | None = None,
    ) -> None:
        self._texts = texts
        if not isinstance(texts, PackedTexts) and len(texts) > _PLAIN:
            self._texts = PackedTexts.of(texts)
        self._rows, self._tight = rows, tight
        self._columns = dict(columns or {})
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def packed(self) -> PackedTexts:
        """The texts."""
        return self._texts if isinstance(self._texts, PackedTexts) else PackedTexts.of(self._texts)

    def texts(self) -> Iterator[pa.Array]:
        """All texts, some at a time."""
        texts = self._texts
        yield from texts.runs() if isinstance(texts, PackedTexts) else texts.chunks

    @property
    def rows(self) -> IntArray:
        """Physical rows of each file, -1 if unknown."""
        with self._lock:
            if self._rows is None:
                self._rows = self._counted()
            return self._rows

    @property
    def tight(self) -> BoolArray:
        """Whether they are those of each file's rows, and not merely bound them."""
        with self._lock:
            if self._tight is None:
                self._decode({}, StructType(()))
            assert self._tight is not None
            return self._tight

    def columns(
        self, wanted: Mapping[str, SqlType], schema: StructType, partition_columns: Iterable[str]
    ) -> dict[str, HeldBounds | None]:
        """The bounds of columns by their names; None where nothing is known. Those that are not
        known yet are decoded together."""
        keys = {name: (schema[name].physical_name, type_) for name, type_ in wanted.items()}
        with self._lock:
            new = {name: wanted[name] for name, key in keys.items() if key not in self._columns}
            if new:
                self._decode(self._with_few(new, schema, partition_columns), schema)
            return {name: self._columns[key] for name, key in keys.items()}

    @property
    def decoded(self) -> dict[ColumnName, HeldBounds | None]:
        """The columns that have been decoded."""
        with self._lock:
            return dict(self._columns)

    @property
    def nbytes(self) -> int:
        held = [self._texts, self._rows, self._tight, *list(self._columns.values())]
        return sum(int(each.nbytes) for each in held if each is not None)

    def keep(self, keep: BoolArray) -> HeldStatistics:
        """Those of the entries where `keep` is true."""
        at = np.flatnonzero(keep)
        texts = self._texts
        if isinstance(texts, PackedTexts):
            texts = texts if keep.all() else texts.filter(keep)
        else:
            texts = texts.filter(pa.array(keep))
        return HeldStatistics(
            texts,
            rows=None if self._rows is None else self._rows[at],
            tight=None if self._tight is None else self._tight[at],
            columns={
                key: None if column is None else column.take(at)
                for key, column in self.decoded.items()
            },
        )

    @classmethod
    def together(cls, parts: Sequence[HeldStatistics]) -> HeldStatistics:
        """The statistics of several runs of entries, with what all of them have decoded."""
        if len(parts) == 1:
            return parts[0]
        columns = [part.decoded for part in parts]
        shared: dict[ColumnName, HeldBounds | None] = {}
        for key in columns[0]:
            found = [each.get(key) for each in columns]
            known = [column for column in found if column is not None]
            if len(known) == len(parts):
                shared[key] = concatenated(known)
        runs = (run for part in parts for run in part.texts())
        few = sum(map(len, parts)) <= _PLAIN
        texts = pa.chunked_array(runs, pa.string()) if few else PackedTexts.streamed(runs)
        return cls(
            texts,
            rows=_concatenated([part._rows for part in parts]),
            tight=_concatenated([part._tight for part in parts]),
            columns=shared,
        )

    # Internals: with the lock

    def _with_few(
        self, new: Mapping[str, SqlType], schema: StructType, partition_columns: Iterable[str]
    ) -> Mapping[str, SqlType]:
        if self._columns or len(self) <= _PLAIN:
            return new
        partitions = set(partition_columns)
        fields = [field for field in schema if field.name not in partitions]
        if len(fields) > _FEW:
            return new
        others = {
            field.name: type_
            for field in fields
            if isinstance(field.type, PrimitiveType)
            and statistics_type(type_ := type_named(field.type.name)) is not None
        }
        return {**others, **new}

    def _counted(self) -> IntArray:
        return np.concatenate([np.zeros(0, np.int64), *self._each(_numbers)])

    def _decode(self, wanted: Mapping[str, SqlType], schema: StructType) -> None:
        found = self._each(lambda texts: stated_bounds(texts, schema, wanted))
        self._rows = np.concatenate([np.zeros(0, np.int64), *(each.rows for each in found)])
        self._tight = np.concatenate([np.zeros(0, bool), *(each.tight for each in found)])
        for name, type_ in wanted.items():
            parts = [each.columns[name] for each in found if name in each.columns]
            key = schema[name].physical_name, type_
            self._columns[key] = concatenated(parts) if parts else None

    def _each(self, function: Callable[[pa.ChunkedArray], _T]) -> list[_T]:
        """What a function returns for each piece of the texts."""

        def of(run: tuple[int, int]) -> _T:
            start, stop = run
            texts = self._texts
            if isinstance(texts, PackedTexts):
                return function(pa.chunked_array([texts.slice(start, stop)]))
            return function(texts.slice(start, stop - start))

        runs = list(pieces(len(self)))
        if len(runs) < 2:
            return [of(run) for run in runs]
        with ThreadPoolExecutor(min(_threads(), len(runs)), "tandem-statistics") as pool:
            return list(pool.map(of, runs))


def _threads() -> int:
    return min(os.cpu_count() or 1, 8)


def _numbers(texts: pa.ChunkedArray) -> IntArray:
    if len(texts) <= _FEW_TEXTS:
        with suppress(UnicodeDecodeError):  # Arrow looks at less of them
            found = [stats_.num_records_of(text) for text in texts.to_pylist()]
            return np.array([UNKNOWN if number is None else number for number in found], np.int64)
    numbers: IntArray = pc.fill_null(stats_.num_records(texts), UNKNOWN).to_numpy()
    return numbers.astype(np.int64)


def _concatenated(arrays: Sequence[Any]) -> Any:
    """All of them as one; None if one is not known."""
    known = [each for each in arrays if each is not None]
    return np.concatenate(known) if known and len(known) == len(arrays) else None
