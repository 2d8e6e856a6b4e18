"""Parquet files by two implementations in Go: parquet-go writes, Arrow Go reads.

The program is built first where it is missing (`tools/build-go-parquet.sh`).
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Literal, TypedDict, Unpack

import pyarrow as pa

_BUILD = Path(__file__).resolve().parents[3] / "tools" / "build-go-parquet.sh"


class WriteOptions(TypedDict, total=False):
    """How parquet-go writes a file; zstd, PLAIN and data pages of version 1 unless given."""

    codec: Literal["none", "snappy", "gzip", "brotli", "zstd", "lz4"]
    encoding: Literal["plain", "dictionary", "delta"]
    page_version: Literal[1, 2]
    page_bytes: int
    group_rows: int
    bloom: Sequence[str]
    """Columns with bloom filters."""
    int96: bool
    """Whether timestamps, which must be microseconds, become INT96."""
    encrypted: Literal["footer", "pages"]
    """Pages are encrypted, and with `footer` the footer, too."""


@cache
def program() -> str:
    """The path of the program, which is built if need be."""
    built = subprocess.run([str(_BUILD)], stdout=subprocess.PIPE, check=True, text=True)
    return built.stdout.strip()


def write(path: Path, table: pa.Table, **options: Unpack[WriteOptions]) -> None:
    """Writes a file by parquet-go. Raises: ValueError if it cannot."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    _run("write", json.dumps(options), str(path), rows=sink.getvalue().to_pybytes())


def read(path: Path) -> pa.Table:
    """All rows of a file, by Arrow Go. Raises: ValueError if it cannot read it."""
    with pa.ipc.open_stream(_run("read", str(path))) as stream:
        return stream.read_all()


def check(path: Path) -> tuple[int, int]:
    """Compares page indexes and bloom filters with the values that they describe, by parquet-go.

    Returns: the number of pages that an index describes, and of bloom filters.
    Raises: ValueError if one of them says what is not so, or the file cannot be read.
    """
    pages, filters = _run("check", str(path)).split()
    return int(pages), int(filters)


def _run(*arguments: str, rows: bytes = b"") -> bytes:
    done = subprocess.run([program(), *arguments], input=rows, capture_output=True, check=False)
    if done.returncode:
        raise ValueError(done.stderr.decode(errors="replace").strip())
    return done.stdout
