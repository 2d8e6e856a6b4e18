"""Parquet's bloom filters: split blocks, by XXH64. Read from files of any writer.

A filter says of a value that no row of a row group has it, or that some may. One that is not as
specified is no filter (FactsRefused). Source: "Parquet Bloom Filter" of apache/parquet-format.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from tandem.delta.datafiles import thrift
from tandem.errors import FactsRefused, ObjectNotFound
from tandem.index.facts.encoded import Encodings
from tandem.index.facts.model import UNKNOWN
from tandem.storage.paths import object_path
from tandem.storage.store import Store

MOST_BYTES: Final = 16 << 20
"""Bytes of a filter at most: enough for ten million values of a row group."""
_HEADER: Final = 256
"""Bytes of a header at most; those of today have about 15."""
_BLOCK: Final = struct.Struct("<8I")
_SALT: Final = (
    0x47B6137B, 0x44974D91, 0x8824AD5B, 0xA2B7289D, 0x705495C7, 0x2DF1424B, 0x9EFC4947, 0x5C6BFB31,
)  # fmt: skip
_FEW: Final = 16
"""So many values are faster one by one than by numpy."""
_SIZE, _ALGORITHM, _HASH, _COMPRESSION = 1, 2, 3, 4
_KNOWN: Final[dict[int, Any]] = {1: {}}
"""Split blocks, XXH64, uncompressed: the first entry of each union."""
_FIELDS: Final[thrift.Wanted] = {
    _SIZE: thrift.INT, _ALGORITHM: {1: {}}, _HASH: {1: {}}, _COMPRESSION: {1: {}},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FilterPlace:
    """Where the filter of a column in a row group lies.

    Attributes:
        path: of the file, as logged.
        size: of the file, in bytes.
        start, length: in bytes, with the header; `length` is `UNKNOWN` if nothing says it.
    """

    path: str
    size: int
    start: int
    length: int


class Hashes:
    """The hashes of some values, to look for in many filters.

    Args:
        values: the encodings of each; None for a value that cannot be looked for.
    """

    def __init__(self, values: Sequence[Encodings | None]) -> None:
        self.unknown = [each is None for each in values]
        """Which values cannot be looked for."""
        self._found = [
            (owner, xxhash.xxh64_intdigest(encoding))
            for owner, each in enumerate(values)
            for encoding in each or ()
        ]

    @cached_property
    def one_by_one(self) -> list[tuple[int, int, tuple[int, ...]]] | None:
        """(the value, the upper half of its hash, its bits in a block); None if they are many."""
        if len(self._found) > _FEW:
            return None
        return [
            (owner, hash_ >> 32, tuple(1 << ((hash_ * salt & 0xFFFFFFFF) >> 27) for salt in _SALT))
            for owner, hash_ in self._found
        ]

    @cached_property
    def together(
        self,
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.uint64], npt.NDArray[np.uint32]]:
        """The same as arrays."""
        owners = np.array([owner for owner, _ in self._found], np.intp)
        hashes = np.array([hash_ for _, hash_ in self._found], np.uint64)
        low = hashes.astype(np.uint32)[:, None]
        bits = np.uint32(1) << ((low * np.array(_SALT, np.uint32)) >> np.uint32(27))
        return owners, hashes >> np.uint64(32), bits


class BloomFilter:
    """The bits of a filter: blocks of 32 bytes."""

    def __init__(self, bits: bytes) -> None:
        self._bits = bits
        self._blocks = len(bits) // _BLOCK.size

    def may_have(self, hashes: Hashes) -> list[bool]:
        """For each value, whether a row may have it."""
        few = hashes.one_by_one
        if few is None:
            return self._may_have_many(hashes)
        found = hashes.unknown.copy()
        for owner, upper_half, masks in few:
            words = _BLOCK.unpack_from(self._bits, (upper_half * self._blocks >> 32) * _BLOCK.size)
            for word, mask in zip(words, masks, strict=True):
                if not word & mask:
                    break
            else:
                found[owner] = True
        return found

    def _may_have_many(self, hashes: Hashes) -> list[bool]:
        owners, upper, bits = hashes.together
        words = np.frombuffer(self._bits, "<u4").reshape(-1, len(_SALT))
        blocks = words[(upper * np.uint64(self._blocks)) >> np.uint64(32)]
        found = np.array(hashes.unknown)
        found[owners[((blocks & bits) == bits).all(axis=1)]] = True
        listed: list[bool] = found.tolist()
        return listed

    @property
    def nbytes(self) -> int:
        return len(self._bits)


def read_filter(store: Store, path: str, place: FilterPlace) -> BloomFilter:
    """A filter, in one request; in two if nothing says how long it is.

    Args:
        path: of the file, for the store.
    Raises: FactsRefused; ObjectNotFound, AccessDenied, StorageError of the store.
    """
    left = place.size - place.start
    first = _HEADER if place.length == UNKNOWN else place.length
    if place.start < 0 or left <= 0:
        raise _refused(path, "start", place.start, f"a byte of {place.size}")
    if not 0 < first <= MOST_BYTES + _HEADER:
        raise _refused(path, "length", first, f"{MOST_BYTES} bytes at most")
    data = store.get_range(path, place.start, min(first, left))
    size, begin = _header(path, data)
    if place.length != UNKNOWN and begin + size != place.length:
        raise _refused(path, "length", begin + size, f"{place.length}, as in the footer")
    if begin + size > left:
        raise _refused(path, "numBytes", size, f"{left - begin} at most")
    if len(data) < begin + size:
        data += store.get_range(path, place.start + len(data), begin + size - len(data))
    bits = data[begin : begin + size]
    if len(bits) != size:
        raise _refused(path, "numBytes", size, f"{len(bits)}, which the file has")
    return BloomFilter(bits)


def filters_of(
    store: Store, not_believed: Counter[str]
) -> Callable[[Sequence[FilterPlace]], list[BloomFilter | None]]:
    """Reads filters of a table's files, one after the other. One that is missing is None, and so is
    one that is not believed, which is counted in `not_believed` by the field that is wrong."""

    def load(places: Sequence[FilterPlace]) -> list[BloomFilter | None]:
        return [one(place) for place in places]

    def one(place: FilterPlace) -> BloomFilter | None:
        try:
            return read_filter(store, object_path(place.path), place)
        except FactsRefused as error:
            not_believed[error.field] += 1
        except ObjectNotFound:
            not_believed["path"] += 1
        return None

    return load


def _header(path: str, data: bytes) -> tuple[int, int]:
    """(bytes of bits, bytes of the header)."""
    try:
        found, end = thrift.read(data[:_HEADER], 0, _FIELDS)
        kinds = [found[name] for name in (_ALGORITHM, _HASH, _COMPRESSION)]
        size = found[_SIZE]
    except (ValueError, IndexError, KeyError, RecursionError) as error:
        raise _refused(path, "header", f"{type(error).__name__}: {error}"[:200]) from error
    if any(kind != _KNOWN for kind in kinds):
        raise _refused(path, "header", kinds, "split blocks, XXH64, uncompressed")
    if not 0 < size <= MOST_BYTES or size % _BLOCK.size:
        raise _refused(path, "numBytes", size, f"blocks of {_BLOCK.size}, {MOST_BYTES} at most")
    return size, end


def _refused(path: str, field: str, found: object, expected: str = "a filter") -> FactsRefused:
    return FactsRefused(
        "a bloom filter of a data file is not believed",
        resource=path,
        field=field,
        found=found,
        expected=expected,
        remedy="The row group is read without it. Check the file with its writer",
    )
