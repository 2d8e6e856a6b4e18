"""Per-file statistics (protocol, "Per-file Statistics"): read in columns, write for our files.

The JSON text of a million files is parsed by Arrow, not row by row. No I/O.
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as paj

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
        except ValueError:
            return None
        value = body.get("numRecords") if isinstance(body, dict) else None
    return value if isinstance(value, int) else None
