"""Parquet's bloom filters: split blocks, by XXH64. Read from files of any writer, and asked for
the constants of a condition, plainly encoded.
"""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from tandem.delta.datafiles import thrift
from tandem.delta.datafiles.times import DAY_US
from tandem.delta.schema import Field
from tandem.distinct import BoolArray, IntArray
from tandem.errors import FactsRefused
from tandem.index.facts.row_groups import (
    UNKNOWN,
    FileFacts,
    StoredType,
    ValueKind,
    column_keys,
    reads_as,
)
from tandem.pruning.bounds import ColumnBounds, RangeComparison, SortedKeys, comparable_constant
from tandem.pruning.scope import micros
from tandem.statements import tree
from tandem.statements.tree import Expr
from tandem.statements.types import SqlType
from tandem.storage.store import Store

# Parquet's bloom filters: split blocks, by XXH64. Read from files of any writer.
#
# A filter says of a value that no row of a row group has it, or that some may. One that is not as
# specified is no filter (FactsRefused). Source: "Parquet Bloom Filter" of apache/parquet-format.


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


# Constants of a condition as the values that a bloom filter hashes: plainly encoded, without the
# length of byte arrays.
#
# Pure. A constant has an encoding for each stored value that Spark finds equal to it: two for zero
# of a float, none if no value of the column can be equal. Source: "Parquet Bloom Filter" of
# apache/parquet-format.


Encodings = tuple[bytes, ...]

_RANGES = {"INT32": 31, "INT64": 63}
_FORMS = {"INT32": "<i", "INT64": "<q", "FLOAT": "<f", "DOUBLE": "<d"}


def encodings(value: Any, stored: StoredType, type_: SqlType) -> Encodings | None:
    """The encodings of the stored values that equal a constant; None if that is not certain.

    Args:
        value: in the form of `constants.comparable_constant` for `type_`.
        type_: the column's type.
    """
    if not reads_as(stored, type_):
        return None
    match stored.kind:
        case ValueKind.INTEGER:
            return _integer(value, stored)
        case ValueKind.FLOAT | ValueKind.DOUBLE:
            return _floating(value, stored)
        case ValueKind.DECIMAL:
            return _decimal(value, stored)
        case ValueKind.TEXT:
            return (value,)
        case ValueKind.DATE:
            days, rest = divmod(micros(value), DAY_US)
            return () if rest else _packed(days, stored)
        case ValueKind.TIMESTAMP | ValueKind.TIMESTAMP_NTZ:
            return _moment(value, stored)
        case _:
            return None


def _integer(value: int | float | Decimal, stored: StoredType) -> Encodings:
    return _packed(int(value), stored) if value == int(value) else ()


def _packed(number: int, stored: StoredType) -> Encodings:
    limit = 1 << _RANGES[stored.physical]
    return (struct.pack(_FORMS[stored.physical], number),) if -limit <= number < limit else ()


def _floating(value: float, stored: StoredType) -> Encodings:
    form = _FORMS[stored.physical]
    if value == 0:
        return struct.pack(form, 0.0), struct.pack(form, -0.0)
    try:
        data = struct.pack(form, value)
    except OverflowError:
        return ()
    # A float that is compared with a double is equal to it as a double.
    return (data,) if struct.unpack(form, data)[0] == value else ()


def _decimal(value: int | Decimal, stored: StoredType) -> Encodings | None:
    if stored.physical == "BYTE_ARRAY":
        return None  # of any number of bytes
    sign, digits, exponent = Decimal(value).as_tuple()
    assert isinstance(exponent, int)
    unscaled = int("".join(map(str, digits)))
    shift = exponent + stored.scale
    if shift < 0:
        unscaled, rest = divmod(unscaled, 10**-shift)
        if rest:
            return ()
    else:
        unscaled *= 10**shift
    unscaled = -unscaled if sign else unscaled
    if stored.physical in _RANGES:
        return _packed(unscaled, stored)
    try:
        return (unscaled.to_bytes(stored.length, "big", signed=True),)
    except OverflowError:
        return ()


def _moment(value: dt.datetime | dt.date, stored: StoredType) -> Encodings | None:
    match stored.unit:
        case "us":
            return _packed(micros(value), stored)
        case "ms":
            millis, rest = divmod(micros(value), 1_000)
            return () if rest else _packed(millis, stored)
        case _:
            return None  # readers round nanoseconds


# What bloom filters say of the constants of a condition, in some row groups.
#
# Pure, but for the function that loads filters, which the caller brings.


LoadFilters = Callable[[Sequence[FilterPlace]], Sequence[BloomFilter | None]]
"""Reads filters; None for one that cannot be read or is not believed."""

_AT_ONCE = 16
"""Filters that are in memory together for one question; most have up to a mebibyte."""
_EQUALITIES = ("=", "!=", "<=>")


def equalities(where: Expr) -> dict[str, list[Any]]:
    """The constants that columns are compared with for equality."""
    found: dict[str, dict[Any, None]] = {}
    for column, literal in _comparisons(where):
        value = comparable_constant(literal, column.type)
        if value is not None and len(column.parts) == 1:
            found.setdefault(column.parts[0], {})[value] = None
    return {name: list(values) for name, values in found.items()}


def _comparisons(where: Expr) -> Iterator[tuple[tree.ColumnRef, tree.Literal]]:
    for node in tree.walk(where):
        match node:
            case tree.Binary(left=tree.ColumnRef() as column, right=tree.Literal() as literal):
                if node.op in _EQUALITIES:
                    yield column, literal
            case tree.Binary(left=tree.Literal() as literal, right=tree.ColumnRef() as column):
                if node.op in _EQUALITIES:
                    yield column, literal
            case tree.InList(value=tree.ColumnRef() as column):
                for item in node.items:
                    if isinstance(item, tree.Literal):
                        yield column, item


class Probe:
    """What the filters of a column say of constants, in some row groups."""

    def __init__(
        self,
        facts: FileFacts,
        groups: IntArray,
        field: Field,
        bounds: ColumnBounds,
        constants: Sequence[Any],
        *,
        by_id: bool,
    ) -> None:
        self.name = field.name
        self._facts, self._groups = facts, groups
        self._places = {value: place for place, value in enumerate(constants)}
        self._hashes: list[Hashes] = []
        # By row group: the entry of `_hashes` for the type of its column, and its filter.
        self._kind = np.full(len(groups), UNKNOWN)
        self._start, self._bytes = (np.full(len(groups), UNKNOWN) for _ in range(2))
        for key in column_keys(facts, field, by_id=by_id):
            column = facts.columns[key]
            start = column.filter_start[groups]
            here = start != UNKNOWN
            self._kind[here] = len(self._hashes)
            self._start[here] = start[here]
            self._bytes[here] = column.filter_bytes[groups][here]
            self._hashes.append(Hashes([encodings(v, key.type, bounds.type) for v in constants]))
        # Statistics may say already that no row has one of the constants.
        near = np.logical_or.reduce([bounds.place(value).touches() for value in constants])
        self._kind[~near] = UNKNOWN
        self._asked = np.zeros(len(groups), bool)
        self._found = np.ones((len(constants), len(groups)), bool)
        self.assume(False)

    def __bool__(self) -> bool:
        return bool((self._kind != UNKNOWN).any())

    def assume(self, present: bool) -> None:
        """Whether filters that were not asked have the constants."""
        self._found[:, (self._kind != UNKNOWN) & ~self._asked] = present

    def ask(self, rows: IntArray, load: LoadFilters) -> None:
        """Load the filters of some row groups."""
        rows = rows[(self._kind[rows] != UNKNOWN) & ~self._asked[rows]]
        if not len(rows):
            return
        files = self._facts.file_of_group[self._groups[rows]]
        places = [
            FilterPlace(path, size, start, length)
            for path, size, start, length in zip(
                self._facts.paths.take(files).to_pylist(),
                self._facts.sizes[files].tolist(),
                self._start[rows].tolist(),
                self._bytes[rows].tolist(),
                strict=True,
            )
        ]
        anything = [True] * len(self._places)
        for first in range(0, len(rows), _AT_ONCE):
            piece = rows[first : first + _AT_ONCE]
            filters = load(places[first : first + _AT_ONCE])
            answers = [
                anything if filter_ is None else filter_.may_have(self._hashes[kind])
                for kind, filter_ in zip(self._kind[piece].tolist(), filters, strict=True)
            ]
            self._found[:, piece] = np.array(answers).T
        self._asked[rows] = True

    def may_equal(self, value: Any) -> BoolArray | bool:
        place = self._places.get(value)
        return True if place is None else self._found[place]


class FilteredBounds(ColumnBounds):
    """The bounds of a column, which equals a constant only where its filter allows that."""

    def __init__(self, bounds: ColumnBounds, probe: Probe) -> None:
        super().__init__(bounds.some_null, bounds.some_value)
        self.type = bounds.type
        self._bounds, self._probe = bounds, probe

    def place(self, value: Any) -> RangeComparison:
        found = self._bounds.place(value)
        return RangeComparison(
            found.below, lambda: found.touches() & self._probe.may_equal(value), found.above
        )

    def may_begin(self, prefix: bytes) -> BoolArray:
        return self._bounds.may_begin(prefix)

    def may_equal(self, keys: SortedKeys) -> BoolArray:
        return self._bounds.may_equal(keys)
