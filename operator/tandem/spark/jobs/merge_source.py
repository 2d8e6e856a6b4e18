"""The source of a merge as an Arrow table, if it is small, and of a form that is proven equal.

Reads what Spark would read, through the same reader, with the same refusals. CSV and JSON stay with
Spark, which casts their texts; so do files that differ in columns.

Identifies the rows of a merge's source by their content: two hashes of all columns.

The hashes are the same in every round, since the source is pinned, and do not depend on the order
of reading. Two different rows must not have the same hashes, or the engine would skip an insert
because it takes the row for an existing one: Spark's hash ignores nulls, so the set of null columns
is hashed, too; it treats texts that are equal by a collation as one, so their bytes are hashed; and
-0.0 as 0.0, so for each floating point number it is hashed whether it is -0.0.
`with_arrow_identity` computes the same without Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tandem.jobs.formats import SOURCE_IDS, SOURCE_IS_WHOLE, SOURCE_SCHEMA, JobSpec, MergeJob
from tandem.jobs.results import SideFileRef
from tandem.pruning.selection import KEY_TYPES
from tandem.spark.runtime.control import Control, to_file
from tandem.spark.runtime.listing import ListedSource, check_unique_names, types_in
from tandem.spark.sources.arrow_rows import FILE_BYTES, read_files
from tandem.spark.sources.options import check_option_names
from tandem.spark.sources.readers import SourcePin, delta_files, parquet_files
from tandem.statements import tree
from tandem.statements.local import LocalMerge, NeedsSpark, compile_merge
from tandem.statements.local.kernels import BOUNDED
from tandem.statements.merge import SOURCE, MergeStatement, parse_merge
from tandem.statements.tree import quote_name
from tandem.statements.types import Schema

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
    """A column as Spark hashes it, by `with_identity`; None if it is not hashed."""
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


FORMATS: Final = frozenset({"Parquet", "Delta"})


@dataclass(frozen=True)
class ArrowSource:
    """All rows of a source. They have `SOURCE_IDS` if the merge records them. `schema` is the
    source's, as Delta writes it; `statement` is the merge with the source's columns."""

    rows: pa.Table
    schema: str
    statement: MergeStatement
    local: LocalMerge

    @property
    def identified(self) -> bool:
        return SOURCE_IDS[0] in self.rows.column_names

    @property
    def read_names(self) -> list[str]:
        """The columns that the merge reads."""
        read = self.statement.columns_of_source()
        return [name for name in self.rows.column_names if name in read]


def compiled(spec: JobSpec, schema: str) -> tuple[MergeStatement, LocalMerge] | None:
    """The merge with a source of this schema; None if only Spark can evaluate it.

    Raises: InvalidStatement.
    """
    job = spec.job
    assert isinstance(job, MergeJob)
    statement = parse_merge(
        job.on, job.clauses, Schema.from_json(spec.table.schema_string), Schema.from_json(schema)
    )
    if any(BOUNDED in each for each in (spec.table.schema_string, schema)):
        return None
    local = compile_merge(statement)
    return None if local is None else (statement, local)


def load(control: Control, pin: SourcePin, listed: ListedSource | None) -> ArrowSource:
    """Read the pinned source.

    Raises: NeedsSpark; InvalidSpec, InvalidStatement, SourceUnreadable, StorageError.
    """
    job = control.spec.job
    assert isinstance(job, MergeJob)
    if job.source_format not in FORMATS or sum(file.size for file in pin.files) > FILE_BYTES:
        raise NeedsSpark("a source that only Spark reads")
    if listed is None:
        files = delta_files(control.spec.table, job, pin.version)
    else:
        types = types_in(control.spec.table.schema_string)
        files, *others = parquet_files(listed, types)
        if others:
            raise NeedsSpark("files that differ in columns")
    if sum(file.size for file in files.inputs) > FILE_BYTES:
        raise NeedsSpark("a large source")
    check_unique_names(files.names, job.source_location)
    check_option_names(files.names, job)
    found = compiled(control.spec, files.table.schema_string)
    if found is None:
        raise NeedsSpark("an expression, or a type, that only Spark evaluates")
    rows = read_files(files)
    if found[0].records_matches:
        identified = with_arrow_identity(rows)
        # Nested columns have no identity on Spark either; long values have one there.
        rows = rows if identified is None else identified
        if identified is None and not any(pa.types.is_nested(f.type) for f in rows.schema):
            raise NeedsSpark("a value of the source is long")
    return ArrowSource(rows, files.table.schema_string, *found)


def copied(control: Control, source: ArrowSource, round_: int) -> SideFileRef | None:
    """The copy for the engine, as `copy_all_rows` makes it from Spark's rows; None in a round in
    which it has none."""
    if round_ == 0:
        kept = [name for name in SOURCE_IDS if name in source.rows.column_names]
        rows = source.rows.select([*source.read_names, *kept])
        size = rows.nbytes + rows.num_rows * ROW_BYTES
        if rows.num_rows > MAX_ROWS or size > MAX_BYTES:
            return None
        return put(control, rows, source.schema, round_, complete=True)
    if round_ == 1 and control.result(0).source is None:
        names = {
            column.parts[1]
            for _, column in source.statement.equal_columns()
            if column.type.name in KEY_TYPES
        }
        if not names:
            return None
        ends = _ends(source.rows.select(sorted(names)))
        return put(control, ends, source.schema, round_, complete=False)
    return None


def _ends(rows: pa.Table) -> pa.Table:
    """The least and the greatest value of each column."""
    columns = []
    for column in rows.columns:
        found = pc.min_max(column)
        columns.append(pa.concat_arrays([pa.repeat(found[end], 1) for end in ("min", "max")]))
    return pa.table(columns, names=rows.column_names)


# A copy of a merge's source for the engine: `JobResult.source`.
#
# From it the engine prunes files by the keys in the source, and evaluates small rounds itself
# (docs/decisions/0099-small-rounds.md). A source with few rows is copied whole, of a larger one the
# least and the greatest value of each column that `on` compares.


MAX_ROWS = 100_000
"""A source with more rows is not copied whole."""
MAX_BYTES = 32 << 20
"""A source that takes more memory is not copied whole: the engine holds the copy during a merge."""


ROW_BYTES = 48
"""Approximate memory of a row in addition to its values: its header, and its hash table entry."""


@dataclass(frozen=True)
class SourceSize:
    """The memory of a source: its rows, and the approximate bytes of the columns that are read."""

    rows: int
    bytes: int


def measure(source: DataFrame, merge: MergeStatement) -> SourceSize:
    """Measure the columns that the merge reads inside Spark: a file of few bytes may hold gigabytes
    of one text, for which the driver has no memory."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
    from pyspark.sql import types as T  # noqa: N812 - as above

    rows = source.select(*map(quote_name, _copied(source, merge)))
    sizes = [F.lit(0)]
    for field in rows.schema.fields:
        column = F.col(quote_name(field.name))
        if isinstance(field.dataType, T.StringType | T.BinaryType):
            sizes.append(F.octet_length(column))
        elif not isinstance(field.dataType, T.AtomicType | T.NullType):
            sizes.append(F.octet_length(column.cast("string")))
    found = rows.agg(F.count(F.lit(1)), *(F.sum(size.cast("long")) for size in sizes)).collect()[0]
    count = found[0]
    fixed = count * (ROW_BYTES + 8 * len(rows.columns))
    return SourceSize(count, fixed + sum(size or 0 for size in found[1:]))


def copy_all_rows(
    control: Control, source: DataFrame, merge: MergeStatement, size: SourceSize, round_: int
) -> SideFileRef | None:
    """Copy all rows of the columns that the merge reads; None if there are too many."""
    names = _copied(source, merge)
    if not names or size.rows > MAX_ROWS or size.bytes > MAX_BYTES:
        return None
    rows = source.select(*map(quote_name, names)).toArrow()
    return put(control, rows, source.schema.json(), round_, complete=True)


def bounds(
    control: Control, source: DataFrame, merge: MergeStatement, round_: int
) -> SideFileRef | None:
    """Copy the least and the greatest value of each column of `on`; None if there is none."""
    from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
    from pyspark.sql.types import AtomicType

    compared = _columns(merge.on)
    names = [
        field.name
        for field in source.schema.fields
        if field.name in compared and isinstance(field.dataType, AtomicType)
    ]
    if not names:
        return None
    found = source.agg(
        *(F.min(quote_name(name)).alias(f"least {name}") for name in names),
        *(F.max(quote_name(name)).alias(f"greatest {name}") for name in names),
    ).toArrow()
    ends = [found.select([f"{end} {n}" for n in names]) for end in ("least", "greatest")]
    rows = [end.rename_columns(names) for end in ends]
    import pyarrow as pa

    return put(control, pa.concat_tables(rows), source.schema.json(), round_, complete=False)


def put(
    control: Control, rows: pa.Table, schema: str, round_: int, *, complete: bool
) -> SideFileRef:
    """Write a copy; `schema` is the source's, as JSON. `complete`: it has all rows."""
    metadata = {SOURCE_SCHEMA: schema, SOURCE_IS_WHOLE: "true" if complete else "false"}
    return control.side_file(
        round_, "source.arrow", to_file(rows.replace_schema_metadata(metadata))
    )


def _copied(source: DataFrame, merge: MergeStatement) -> list[str]:
    read = merge.columns_of_source()
    return [name for name in source.columns if name in read or name in SOURCE_IDS]


def _columns(root: tree.Expr) -> frozenset[str]:
    """The source's columns in an expression."""
    return frozenset(
        node.parts[1]
        for node in tree.walk(root)
        if isinstance(node, tree.ColumnRef) and node.parts[0] == SOURCE
    )
