"""Divides keys into parts of about the same size, for a log whose index exceeds the memory.

Pure. Equal keys are in one part, whatever file they were read from.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tandem.distinct import IntArray

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
