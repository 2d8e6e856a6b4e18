"""Arrow tables as bytes: what tasks send to the driver, and what results refer to."""

from __future__ import annotations

import pyarrow as pa


def to_stream(table: pa.Table) -> bytes:
    """An Arrow IPC stream, compressed."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def to_file(table: pa.Table) -> bytes:
    """An Arrow IPC file, compressed: positions compress well."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table.combine_chunks())
    return bytes(sink.getvalue())
