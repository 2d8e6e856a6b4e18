"""Per-file statistics (protocol, "Per-file Statistics"): read by column, and widened for files
that get a deletion vector.

`tandem.delta.datafiles.stats` makes those of files that we write. No I/O.

Arrow parses the texts; no Python object is made for a file. Only a handful of texts, for which
Arrow takes longer to begin, and texts near one that Arrow refuses (truncated, or with a value of
another type) are parsed one by one, so that a broken text costs its neighbours time and nothing
else.

For every reader, a value that is not of the expected type is unknown, as if it were absent. A
number of rows or NULLs is an integer from 0 to `MOST_ROWS`; `true` is not a number.
"""

from __future__ import annotations

import json
from contextlib import suppress
from decimal import Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as paj

MOST_ROWS = 10**18 - 1
"""A larger number of rows is invalid: sums of such numbers would not fit 64 bits."""

MOST_BYTES = 2 << 20
"""Longer statistics of a file count as absent: Python decodes a text in one go, and nothing else
runs meanwhile. Those of 10,000 columns have about half."""

_CHUNK_ROWS = 65_536
_HANDFUL = 4
"""So many texts are parsed one by one: what a commit adds is often one file."""
_FEW_ROWS = 256
"""So many texts around one that Arrow refuses are parsed one by one."""

_OPEN = pa.scalar('{"s":', pa.large_string())
_CLOSE = pa.scalar("}", pa.large_string())
_NOTHING = pa.scalar("", pa.large_string())
_LINE_BREAK = pa.scalar("\n", pa.large_string())
_ROWS = pa.schema([("numRecords", pa.int64())])


def read(stats: pa.ChunkedArray, wanted: pa.Schema) -> pa.Table:
    """Chosen fields of the statistics, one row per file; unknown ones are null.

    Args:
        stats: JSON texts, null where a file has none.
        wanted: fields of type int64, double, string, bool, or structs of these, for example
            `minValues: struct<a: int64>`.
    """
    tables = [wanted.empty_table()]
    for chunk in stats.chunks:
        lengths = pc.binary_length(chunk)
        if (pc.max(lengths).as_py() or 0) > MOST_BYTES:
            chunk = pc.if_else(pc.greater(lengths, MOST_BYTES), pa.scalar(None, chunk.type), chunk)
        for start in range(0, len(chunk), _CHUNK_ROWS):
            tables += _piece(chunk.slice(start, _CHUNK_ROWS), wanted)
    return pa.concat_tables(tables)


def num_records(stats: pa.ChunkedArray) -> pa.ChunkedArray:
    """int64, one value per file: its physical rows, null if unknown."""
    return valid_counts(read(stats, _ROWS)["numRecords"])


def num_records_of(text: str | None) -> int | None:
    """Like `num_records`, of one file."""
    try:
        body = json.loads(text) if text and len(text) <= MOST_BYTES else None
    except (ValueError, RecursionError):
        return None
    found = body.get("numRecords") if isinstance(body, dict) else None
    return found if type(found) is int and 0 <= found <= MOST_ROWS else None


def valid_counts(numbers: pa.ChunkedArray) -> pa.ChunkedArray:
    """The numbers of rows or NULLs, null for invalid ones."""
    valid = pc.and_(
        pc.greater_equal(numbers, pa.scalar(0, pa.int64())),
        pc.less_equal(numbers, pa.scalar(MOST_ROWS, pa.int64())),
    )
    return pc.if_else(valid, numbers, pa.scalar(None, pa.int64()))


def _piece(texts: pa.Array, wanted: pa.Schema) -> list[pa.Table]:
    """The parsed texts, in as few pieces as broken ones allow."""
    if texts.null_count == len(texts):
        return [pa.table([pa.nulls(len(texts), f.type) for f in wanted], schema=wanted)]
    if len(texts) <= _HANDFUL:
        with suppress(UnicodeDecodeError):  # Arrow looks only at the wanted fields
            return [_one_by_one(texts, wanted)]
    try:
        return [_parsed(texts, wanted)]
    except pa.ArrowInvalid:
        if len(texts) <= _FEW_ROWS:
            return [_one_by_one(texts, wanted)]
    half = len(texts) // 2
    return _piece(texts.slice(0, half), wanted) + _piece(texts.slice(half), wanted)


def _one_by_one(texts: pa.Array, wanted: pa.Schema) -> pa.Table:
    """Raises: UnicodeDecodeError if one of the texts is no UTF-8."""
    rows = [_fitting(text, wanted) for text in texts.to_pylist()]
    return pa.Table.from_pylist(rows, schema=wanted)


def _parsed(texts: pa.Array, wanted: pa.Schema) -> pa.Table:
    """Raises: ArrowInvalid if one of the texts is no JSON object of the wanted types."""
    # A line break in JSON can only stand between tokens, where a blank does as well. Each line
    # begins with a brace and a name, which no text before it can be continued by: so a text is
    # one object of its own, or there are more objects than lines.
    inner = pc.replace_substring(texts.cast(pa.large_string()), "\n", " ")
    inner = pc.fill_null(inner, "null")
    lines = pc.binary_join_element_wise(_OPEN, inner, _CLOSE, _LINE_BREAK, _NOTHING)
    offsets = memoryview(lines.buffers()[1]).cast("q")
    start, end = offsets[lines.offset], offsets[lines.offset + len(lines)]
    data = lines.buffers()[2].slice(start, end - start)
    longest = int(pc.max(pc.binary_length(lines)).as_py())
    found = paj.read_json(
        pa.BufferReader(data),
        read_options=paj.ReadOptions(use_threads=False, block_size=max(1 << 20, longest + 1)),
        parse_options=paj.ParseOptions(
            explicit_schema=pa.schema([("s", pa.struct(list(wanted)))]),
            unexpected_field_behavior="ignore",
        ),
    )
    if found.num_rows != len(texts):
        raise pa.ArrowInvalid(f"{len(texts)} texts gave {found.num_rows} objects")
    found.validate(full=True)  # texts that are no UTF-8
    return pa.Table.from_batches(
        [pa.RecordBatch.from_arrays(batch.column(0).flatten(), schema=wanted)
         for batch in found.to_batches()],
        wanted,
    )  # fmt: skip


def _fitting(text: str | None, wanted: pa.Schema) -> dict[str, Any]:
    """The fields of one text, without values of another type."""
    try:
        body = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return {}
    found = _fit(body, pa.struct(list(wanted))) or {}
    if isinstance(body, dict) and not isinstance(body.get("tightBounds"), bool | None):
        found["tightBounds"] = False  # the bounds may be wide, and the NULLs may be deleted
    return found


def _fit(value: Any, type_: pa.DataType) -> Any:
    if pa.types.is_struct(type_):
        if not isinstance(value, dict):
            return None
        return {field.name: _fit(value.get(field.name), field.type) for field in type_}
    if isinstance(value, bool):
        return value if pa.types.is_boolean(type_) else None
    if pa.types.is_int64(type_):
        return value if isinstance(value, int) and -(2**63) <= value < 2**63 else None
    if pa.types.is_float64(type_) and isinstance(value, int | float):
        try:
            return float(value)
        except OverflowError:
            return None
    if pa.types.is_string(type_) and isinstance(value, str):
        # Half of a surrogate pair can be read as JSON, but is not text.
        return value if value.isascii() or _is_utf8(value) else None
    return None


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


@lru_cache(maxsize=1_024)  # each round of a commit asks for the same files
def mark_bounds_wide(stats: str | None, num_records: int) -> str:
    """The statistics of a file that gets a deletion vector: the bounds are kept but no longer
    tight, and `num_records` (physical rows) is set. Broken or absent statistics are replaced by
    `num_records` alone."""
    certain = {"numRecords": num_records, "tightBounds": False}
    try:
        known = stats is not None and len(stats) <= MOST_BYTES
        body = json.loads(stats, parse_float=Decimal) if stats and known else {}
        if isinstance(body, dict):
            text = dumps({**body, **certain})
            text.encode()  # half of a surrogate pair can be read as JSON, but not be written
            return text
    except (ValueError, RecursionError):
        pass  # statistics that cannot be parsed bound nothing
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
