"""Per-file statistics (protocol, "Per-file Statistics"): read in columns, loosened for vectors.

The JSON text of a million files is parsed by Arrow, not row by row. Those of files that we write
are made in `tandem.delta.datafiles.stats`. No I/O.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as paj

from tandem.delta.schema import DataType, to_arrow_type

_CHUNK_ROWS = 65_536
_NOTHING = pa.scalar("", pa.large_string())
_LINE_BREAK = pa.scalar("\n", pa.large_string())


def parse(stats: pa.ChunkedArray, schema: pa.Schema) -> pa.Table:
    """Chosen fields of the statistics of many files, one row each; absent ones are null.

    Args:
        stats: JSON texts, null where a file has none.
        schema: the fields wanted, e.g. `numRecords: int64` or `minValues: struct<a: int64>`.
    Raises: ValueError if a text is no JSON object or a value has another type.
    """
    tables = [_parse(chunk, schema) for chunk in _pieces(stats)]
    return pa.concat_tables(tables) if tables else schema.empty_table()


def _pieces(stats: pa.ChunkedArray) -> list[pa.Array]:
    chunks = stats.chunks if isinstance(stats, pa.ChunkedArray) else [stats]
    return [
        chunk.slice(start, _CHUNK_ROWS)
        for chunk in chunks
        for start in range(0, len(chunk), _CHUNK_ROWS)
    ]


def _parse(chunk: pa.Array, schema: pa.Schema) -> pa.Table:
    if chunk.null_count == len(chunk):
        return pa.table([pa.nulls(len(chunk), f.type) for f in schema], schema=schema)
    text = pc.fill_null(chunk, "{}").cast(pa.large_string())
    # A line break can only stand between tokens, where a blank does as well.
    text = pc.replace_substring(text, "\n", " ")
    lines = pc.binary_join_element_wise(text, _NOTHING, _LINE_BREAK)
    offsets = memoryview(lines.buffers()[1]).cast("q")
    start, end = offsets[lines.offset], offsets[lines.offset + len(lines)]
    data = lines.buffers()[2].slice(start, end - start)
    longest = int(pc.max(pc.binary_length(lines)).as_py())
    try:
        table = paj.read_json(
            pa.BufferReader(data),
            read_options=paj.ReadOptions(use_threads=False, block_size=max(1 << 20, longest + 1)),
            parse_options=paj.ParseOptions(
                explicit_schema=schema, unexpected_field_behavior="ignore"
            ),
        )
    except pa.ArrowInvalid as error:
        raise ValueError(f"statistics that are no JSON of the expected types: {error}") from error
    if table.num_rows != len(chunk):
        raise ValueError(f"{len(chunk)} statistics texts gave {table.num_rows} objects")
    return table.select(schema.names).cast(schema)


_NUM_RECORDS = pa.schema([("numRecords", pa.int64())])


def num_records(stats: pa.ChunkedArray) -> pa.ChunkedArray:
    """int64, one a file: its physical rows, null without statistics (or with broken ones)."""
    chunks: list[pa.Array] = []
    for chunk in _pieces(stats):
        try:
            column = _parse(chunk, _NUM_RECORDS)["numRecords"]
            chunks += column.chunks
        except ValueError:
            chunks.append(pa.array([_one(text) for text in chunk.to_pylist()], pa.int64()))
    return pa.chunked_array(chunks, pa.int64())


def _one(text: str | None) -> int | None:
    """`numRecords` of one text, None where the text is broken: statistics are optional."""
    value: Any = None
    if text:
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):
            return None
        value = body.get("numRecords") if isinstance(body, dict) else None
    return _count(value)


def _count(value: Any) -> int | None:
    """A number of rows, unless it is none: whoever wrote it may have written anything."""
    return value if isinstance(value, int) and abs(value) < 2**63 else None


@dataclass(frozen=True, slots=True)
class Bounds:
    """What statistics say of one column, one entry a file, null where they say nothing.

    `low` and `high` are of the column's Arrow type and include every live value; `nulls` is
    certain only where it is 0 or equals `rows`.
    """

    low: pa.ChunkedArray
    high: pa.ChunkedArray
    nulls: pa.ChunkedArray
    rows: pa.ChunkedArray


def bounds(stats: pa.ChunkedArray, path: Sequence[str], type_: DataType) -> Bounds:
    """The bounds of the column at a physical path, for files with these statistics.

    Values that cannot be understood count as absent.
    """
    arrow = to_arrow_type(type_)
    text_like = pa.types.is_string(arrow) or pa.types.is_date(arrow) or pa.types.is_timestamp(arrow)
    raw = pa.string() if text_like else arrow
    wanted = pa.schema(
        [
            _nested("minValues", path, raw),
            _nested("maxValues", path, raw),
            _nested("nullCount", path, pa.int64()),
            ("numRecords", pa.int64()),
        ]
    )
    try:
        if pa.types.is_decimal(arrow):
            raise ValueError("Arrow reads no decimals from JSON numbers")
        table = parse(stats, wanted)
    except ValueError:
        return _bounds_one_by_one(stats, path, arrow)
    low, high = _leaf(table["minValues"], path), _leaf(table["maxValues"], path)
    if raw != arrow:
        low, high = _from_text(low, arrow), _from_text(high, arrow)
    return Bounds(low, _widen(high, arrow), _leaf(table["nullCount"], path), table["numRecords"])


def may_contain(
    bounds_: Bounds, low: pa.Scalar | None = None, high: pa.Scalar | None = None
) -> pa.ChunkedArray:
    """Which files may hold a row whose value lies in [low, high]; None is unbounded. Never null,
    and true where the statistics say nothing. Scalars are of the column's type."""
    all_null = pc.fill_null(pc.equal(bounds_.nulls, bounds_.rows), False)
    keep = pc.invert(all_null)
    if low is not None:
        keep = pc.and_(keep, pc.fill_null(pc.greater_equal(bounds_.high, low), True))
    if high is not None:
        keep = pc.and_(keep, pc.fill_null(pc.less_equal(bounds_.low, high), True))
    return keep


def _nested(name: str, path: Sequence[str], type_: pa.DataType) -> pa.Field:
    for part in reversed(path):
        type_ = pa.struct([(part, type_)])
    return pa.field(name, type_)


def _leaf(column: Any, path: Sequence[str]) -> Any:
    for part in path:
        # By index: Arrow takes a name that begins with a dot for a path.
        column = pc.struct_field(column, [column.type.get_field_index(part)])
    return column


def _from_text(values: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    try:
        return values.cast(type_)
    except pa.ArrowInvalid:
        return pa.chunked_array([pa.array([_one_from_text(v, type_) for v in values], type_)])


def _one_from_text(value: pa.Scalar, type_: pa.DataType) -> Any:
    """One text as a value, None if it is none: some writers log timestamps without a zone."""
    text = value.as_py()
    if text is None:
        return None
    zoned = pa.types.is_timestamp(type_) and type_.tz is not None
    for attempt in (text, text + "Z") if zoned else (text, text.removesuffix("Z")):
        try:
            return pc.cast(pa.scalar(attempt), type_).as_py()
        except pa.ArrowInvalid:
            continue
    return None


def _widen(high: pa.ChunkedArray, type_: pa.DataType) -> pa.ChunkedArray:
    """Upper bounds that hold for every writer and reader: logged maxima of timestamps are cut
    down to milliseconds, those of floats ignore NaN, which Spark sorts above every number."""
    if pa.types.is_floating(type_):
        return pa.chunked_array([pa.nulls(len(high), type_)])
    if not pa.types.is_timestamp(type_):
        return high
    return pc.add(high, pa.scalar(1_000, pa.duration("us")))


def _bounds_one_by_one(stats: pa.ChunkedArray, path: Sequence[str], arrow: pa.DataType) -> Bounds:
    """The slow way: decimals, and statistics in which some value has another type."""
    rows = [_load(text) for text in stats.to_pylist()]

    def column(name: str) -> pa.ChunkedArray:
        return pa.chunked_array(
            [pa.array([_convert(_dig(row, (name, *path)), arrow) for row in rows], arrow)]
        )

    def counts(keys: tuple[str, ...]) -> pa.ChunkedArray:
        found = [_dig(row, keys) for row in rows]
        return pa.chunked_array([pa.array([_count(n) for n in found], pa.int64())])

    high = _widen(column("maxValues"), arrow)
    return Bounds(column("minValues"), high, counts(("nullCount", *path)), counts(("numRecords",)))


def _load(text: str | None) -> Any:
    try:
        return json.loads(text, parse_float=Decimal) if text else None
    except (ValueError, RecursionError):
        return None


def _dig(value: Any, path: Sequence[str]) -> Any:
    for part in path:
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _convert(value: Any, type_: pa.DataType) -> Any:
    if value is None or isinstance(value, dict | list):
        return None
    if isinstance(value, str) and not pa.types.is_string(type_):
        return _one_from_text(pa.scalar(value), type_)
    try:
        if pa.types.is_floating(type_):
            return float(value)
        if pa.types.is_decimal(type_):
            value = Decimal(value)
        return pa.scalar(value, type_).as_py()
    except (pa.ArrowException, TypeError, ValueError, ArithmeticError):
        return None


def loosen(stats: str | None, num_records: int) -> str:
    """The statistics of a file that gets a deletion vector: bounds kept but no longer tight,
    `num_records` (physical rows) certain. Broken or absent statistics become that alone."""
    certain = {"numRecords": num_records, "tightBounds": False}
    try:
        body = json.loads(stats, parse_float=Decimal) if stats else {}
        if isinstance(body, dict):
            text = dumps({**body, **certain})
            text.encode()  # half of a surrogate pair can be read as JSON, but not be written
            return text
    except (ValueError, RecursionError):
        pass  # what nobody can read bounds nothing
    return dumps(certain)


def dumps(value: Any) -> str:
    """JSON text in which decimals keep all their digits."""
    match value:
        case dict():
            inner = ",".join(
                f"{json.dumps(k, ensure_ascii=False)}:{dumps(v)}" for k, v in value.items()
            )
            return "{" + inner + "}"
        case list() | tuple():
            return "[" + ",".join(dumps(v) for v in value) + "]"
        case Decimal():
            return format(value, "f")
        case _:
            return json.dumps(value, ensure_ascii=False)
