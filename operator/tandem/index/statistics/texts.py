"""Texts of many entries that are seldom read, compressed in blocks of neighbours. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from tandem.distinct import BoolArray, IntArray

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
    _, ends, data = piece.buffers()
    offsets = np.frombuffer(ends, np.int32)[piece.offset : piece.offset + len(piece) + 1]
    missing = np.asarray(piece.is_null()) if piece.null_count else None
    content = memoryview(data) if data is not None else memoryview(b"")
    for first in range(0, len(piece), BLOCK):
        last = min(first + BLOCK, len(piece))
        lengths = np.diff(offsets[first : last + 1])
        begin, end = int(offsets[first]), int(offsets[last])
        if missing is None:
            yield lengths.tobytes() + bytes(content[begin:end])
            continue
        # What a null hides is not kept.
        texts_ = [
            b"" if gone else bytes(content[at:until])
            for gone, at, until in zip(
                missing[first:last],
                offsets[first:last].tolist(),
                offsets[first + 1 : last + 1].tolist(),
                strict=True,
            )
        ]
        marked = np.where(missing[first:last], _NULL, lengths).astype(np.int32)
        yield marked.tobytes() + b"".join(texts_)
