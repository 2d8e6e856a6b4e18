"""Identifies the rows of a merge's source by their content: two hashes of all columns.

The hashes are the same in every round, since the source is pinned, and do not depend on the order
of reading. Two different rows must not have the same hashes, or the engine would skip an insert
because it takes the row for an existing one: Spark's hash ignores nulls, so the set of null columns
is hashed, too; it treats texts that are equal by a collation as one, so their bytes are hashed; and
-0.0 as 0.0, so for each floating point number it is hashed whether it is -0.0.
`with_arrow_identity` computes the same without Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tandem.jobs.formats import SOURCE_IDS
from tandem.statements.generate import quote_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructField


def with_identity(source: DataFrame) -> DataFrame | None:
    """The source with two more columns; None if it has a column whose values cannot be compared
    reliably, such as a map."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

    fields = sorted(source.schema.fields, key=lambda field: field.name)
    known: list[Column] = []
    for field in fields:
        values = _values(field)
        if values is None:
            return None
        known += values
    nulls = [F.col(quote_name(field.name)).isNull() for field in fields]
    return source.select(
        "*", *(F.xxhash64(F.lit(name), *nulls, *known).alias(name) for name in SOURCE_IDS)
    )


def _values(field: StructField) -> list[Column] | None:
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
    from pyspark.sql import types as T  # noqa: N812 - as above

    column = F.col(quote_name(field.name))
    if isinstance(field.dataType, T.StringType):
        return [column.cast("binary")]
    if isinstance(field.dataType, T.FloatType | T.DoubleType):
        return [column, column.cast("string") == F.lit("-0.0")]
    plain = (
        T.BooleanType,
        T.ByteType,
        T.ShortType,
        T.IntegerType,
        T.LongType,
        T.DecimalType,
        T.BinaryType,
        T.DateType,
        T.TimestampType,
        T.TimestampNTZType,
    )
    return [column] if isinstance(field.dataType, plain) else None


# The identity of source rows over Arrow: the same hashes without Spark.
#
# A merge may begin without Spark and continue with it, and the engine compares the identities of
# all rounds. Computes Spark's `xxhash64` for the types that have an identity; it does not decide
# which columns are hashed in which form: the above does.


Hashes = npt.NDArray[np.uint64]

LONGEST: Final = 1 << 16
"""Bytes of a text or binary value that is hashed here: the loop takes a step for each 32."""

_SEED: Final = 42
"""Spark's, of `xxhash64`."""
_P1, _P2, _P3, _P4, _P5 = (
    np.array([prime], np.uint64)
    for prime in (
        0x9E3779B185EBCA87,
        0xC2B2AE3D27D4EB4F,
        0x165667B19E3779F9,
        0x85EBCA77C2B2AE63,
        0x27D4EB2F165667C5,
    )
)
_LONG_DIGITS: Final = 18
"""Spark hashes a decimal of more digits as the bytes of a big integer."""


def with_arrow_identity(rows: pa.Table) -> pa.Table | None:
    """The rows with two more columns; None if a column has no identity, or a value is too long to
    be hashed here. Types as in a table (`delta.schema.to_arrow_type`)."""
    columns = [_one_array(rows[name]) for name in sorted(rows.column_names)]
    parts: list[_Part] = [(column.is_null(), None) for column in columns]
    for column in columns:
        found = _parts(column)
        if found is None:
            return None
        parts += found
    for name in SOURCE_IDS:
        seed = hash_bytes(pa.array([name.encode()]), np.array([_SEED], np.uint64))
        hashes = np.repeat(seed, rows.num_rows)
        for values, present in parts:
            if present is None:
                hashes = _hashed(values, hashes)
            else:  # a null leaves the hash as it is
                hashes[present] = _hashed(values.take(pa.array(present)), hashes[present])
        rows = rows.append_column(name, pa.array(hashes.view(np.int64)))
    return rows


_Part = tuple[Any, Any]
"""Values to hash, and the indexes of those that are there (None: all)."""


def _one_array(column: pa.ChunkedArray) -> Any:
    combined = column.combine_chunks()
    if isinstance(combined, pa.ChunkedArray):
        return combined.chunk(0) if combined.num_chunks else pa.array([], combined.type)
    return combined


def _parts(column: Any) -> list[_Part] | None:
    """A column as Spark hashes it, by `row_hash`; None if it is not hashed."""
    is_, type_ = pa.types, column.type
    present = np.flatnonzero(np.asarray(column.is_valid())) if column.null_count else None
    if is_.is_string(type_) or is_.is_binary(type_):
        longest = pc.max(pc.binary_length(column)).as_py() or 0
        return None if longest > LONGEST else [(column.cast(pa.binary()), present)]
    if is_.is_float32(type_) or is_.is_float64(type_):
        values = np.asarray(pc.fill_null(column, 0.0))
        zero = values == 0
        # One NaN, one zero, and which zeros are negative.
        plain = np.where(zero, np.abs(values), np.where(np.isnan(values), np.nan, values))
        negative = pa.array(zero & np.signbit(values))
        return [(pa.array(plain.astype(values.dtype)), present), (negative, present)]
    if not (
        is_.is_boolean(type_)
        or is_.is_signed_integer(type_)
        or is_.is_decimal128(type_)
        or is_.is_date32(type_)
        or is_.is_timestamp(type_)
    ):
        return None
    return [(column, present)]


def _hashed(values: Any, seeds: Hashes) -> Hashes:
    is_, type_ = pa.types, values.type
    if not len(values):  # an empty array may have no buffers
        return seeds
    if is_.is_binary(type_):
        return hash_bytes(values, seeds)
    if is_.is_decimal128(type_):
        if type_.precision > _LONG_DIGITS:
            return hash_bytes(pa.array(map(_big_integer, values.to_pylist()), pa.binary()), seeds)
        low = np.frombuffer(values.buffers()[1], np.int64)[::2]
        return hash_longs(low[values.offset : values.offset + len(values)], seeds)
    if is_.is_boolean(type_):
        return hash_ints(np.asarray(values).astype(np.int32), seeds)
    if is_.is_float64(type_):
        return hash_longs(np.asarray(values).view(np.int64), seeds)
    if is_.is_float32(type_):
        return hash_ints(np.asarray(values).view(np.int32), seeds)
    if is_.is_timestamp(type_) or type_.equals(pa.int64()):
        return hash_longs(np.asarray(values.cast(pa.int64())), seeds)
    return hash_ints(np.asarray(values.cast(pa.int32())), seeds)


def _big_integer(value: Any) -> bytes:
    """The unscaled value as Java's BigInteger has it: the fewest bytes of two's complement."""
    sign, digits, _ = value.as_tuple()
    whole = int("".join(map(str, digits))) * (-1 if sign else 1)
    bits = whole.bit_length() if whole >= 0 else (whole + 1).bit_length()
    return whole.to_bytes(bits // 8 + 1, "big", signed=True)


def hash_ints(values: npt.NDArray[np.int32], seeds: Hashes) -> Hashes:
    """The hash of each value, continued from a seed."""
    words = values.view(np.uint32).astype(np.uint64)
    return _mixed(_short(seeds + _P5 + np.uint64(4), words))


def hash_longs(values: npt.NDArray[np.int64], seeds: Hashes) -> Hashes:
    words = np.ascontiguousarray(values).view(np.uint64)
    return _mixed(_word(seeds + _P5 + np.uint64(8), words))


def hash_bytes(values: Any, seeds: Hashes) -> Hashes:
    """The hash of each binary value, without nulls, continued from a seed."""
    offsets = np.frombuffer(values.buffers()[1], np.int32)
    offsets = offsets[values.offset : values.offset + len(values) + 1].astype(np.int64)
    # Eight more bytes, so that a word may be read that begins at the last one.
    content = np.frombuffer(values.buffers()[2] or b"", np.uint8)
    content = np.concatenate([content, np.zeros(8, np.uint8)])
    lengths = np.diff(offsets)
    # Ascending, so that the rows with a further part are always the last ones.
    order = np.argsort(lengths, kind="stable")
    starts, lengths, seeds = offsets[:-1][order], lengths[order], seeds[order]
    hashes = seeds + _P5
    first = int(np.searchsorted(lengths, 32))
    if first < len(order):
        hashes[first:] = _stripes(content, starts[first:], lengths[first:], seeds[first:])
    hashes += lengths.astype(np.uint64)
    done = lengths // 32 * 32
    for _ in range(3):
        more = np.flatnonzero(lengths - done >= 8)
        hashes[more] = _word(hashes[more], _words(content, starts[more] + done[more], 8))
        done[more] += 8
    more = np.flatnonzero(lengths - done >= 4)
    hashes[more] = _short(hashes[more], _words(content, starts[more] + done[more], 4))
    done[more] += 4
    for _ in range(3):
        more = np.flatnonzero(lengths > done)
        last = content[starts[more] + done[more]].astype(np.uint64)
        hashes[more] = _rotated(hashes[more] ^ (last * _P5), 11) * _P1
        done[more] += 1
    answer = np.empty_like(hashes)
    answer[order] = _mixed(hashes)
    return answer


def _stripes(content: Any, starts: Any, lengths: Any, seeds: Hashes) -> Hashes:
    """Of values of at least 32 bytes, the state after all whole parts of 32."""
    lanes = [seeds + _P1 + _P2, seeds + _P2, seeds.copy(), seeds - _P1]
    counts = lengths // 32
    for part in range(int(counts[-1])):
        first = int(np.searchsorted(counts, part, side="right"))
        for number, lane in enumerate(lanes):
            words = _words(content, starts[first:] + (32 * part + 8 * number), 8)
            lane[first:] = _rotated(lane[first:] + words * _P2, 31) * _P1
    state: Hashes = sum(
        (_rotated(lane, turn) for lane, turn in zip(lanes, (1, 7, 12, 18), strict=True)),
        start=np.zeros_like(seeds),
    )
    for lane in lanes:
        state = (state ^ (_rotated(lane * _P2, 31) * _P1)) * _P1 + _P4
    return state


def _words(content: Any, places: Any, size: int) -> Hashes:
    """The little-endian words of `size` bytes that begin at these places."""
    found = np.zeros(len(places), np.uint64)
    for byte in range(size):
        found |= content[places + byte].astype(np.uint64) << np.uint64(8 * byte)
    return found


def _word(state: Hashes, words: Hashes) -> Hashes:
    return _rotated(state ^ (_rotated(words * _P2, 31) * _P1), 27) * _P1 + _P4


def _short(state: Hashes, words: Hashes) -> Hashes:
    return _rotated(state ^ (words * _P1), 23) * _P2 + _P3


def _mixed(state: Hashes) -> Hashes:
    state = (state ^ (state >> np.uint64(33))) * _P2
    state = (state ^ (state >> np.uint64(29))) * _P3
    return state ^ (state >> np.uint64(32))


def _rotated(values: Hashes, turn: int) -> Hashes:
    return (values << np.uint64(turn)) | (values >> np.uint64(64 - turn))
