"""The text of a source's files as whole lines, read through our store. Depends on no Spark.

Large files are cut at line ends into parts that are read in parallel; compressed ones are not.
"""

from __future__ import annotations

import bz2
import sys
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa

from tandem.delta.datafiles.conform import missing
from tandem.errors import ObjectNotFound, SourceUnreadable, StatementFailed
from tandem.remedies import ENCODING
from tandem.storage import Store

BLOCK_BYTES = 4 << 20
_PACKED_BYTES = 1 << 20
"""What is unpacked at once: it takes several times this."""
_LINE_BYTES = 64 << 10
WHITE = "".join(map(chr, range(33)))
"""The characters that Spark trims."""
_BOM = b"\xef\xbb\xbf"


def place(path: str, line: int, column: str = "") -> str:
    """The location of a value in a source, for errors."""
    return f"{path}, line {line}" + (f", column {column}" if column else "")


def lines_in(text: str) -> int:
    """The number of line ends."""
    if "\r" not in text:
        return text.count("\n")
    return text.count("\n") + text.count("\r") - text.count("\r\n")


def split_lines(text: str) -> list[str]:
    """The lines of a text, without their ends."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    # Not `splitlines`, which also splits at characters that may occur in a value.
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return lines


def read_text(
    store: Store, path: str, encoding: str, start: int = 0, end: int | None = None
) -> Iterator[str]:
    """Whole lines, some megabytes at a time. Every line (up to LF) of a file belongs to exactly one
    of adjacent parts: the one that contains its first byte.

    Raises: DataFileMissing; SourceUnreadable; StatementFailed for bytes that are not text in this
        encoding.
    """
    try:
        source: Any = store.open_input(path)
    except ObjectNotFound as error:
        raise missing(path) from error
    with source:
        codec = compression_of(path)
        # The whole of a compressed file is one part; its size is not that of the text.
        data = _unpacked(source, codec, path) if codec else _span(source, start, end)
        before = 0
        for number, block in enumerate(_blocks(data)):
            if start == 0 and number == 0:
                _require_text(path, block[:16])
                block = block.removeprefix(_BOM)
            try:
                yield block.decode(encoding)
            except UnicodeDecodeError as error:
                raise _no_text(path, encoding, error, before if start == 0 else None) from error
            before += block.count(b"\n")


def _no_text(
    path: str, encoding: str, error: UnicodeDecodeError, before: int | None
) -> StatementFailed:
    """`before`: the number of lines before the block, if known."""
    line = error.object.count(b"\n", 0, error.start) + 1
    begun = error.object.rfind(b"\n", 0, error.start) + 1
    at = f", line {before + line}, byte {error.start - begun + 1}" if before is not None else ""
    return StatementFailed(
        "a source is not text of the expected encoding",
        resource=f"{path}{at}",
        found=f"byte 0x{error.object[error.start]:02x}",
        expected=f"{encoding}, {ENCODING.in_resource}",
    )


def _span(source: Any, start: int, end: int | None) -> Iterator[bytes]:
    """The lines of a file whose first byte is in a range."""
    first = _line_start(source, start)
    left = sys.maxsize if end is None else _line_start(source, end) - first
    source.seek(first)
    while left > 0 and (block := bytes(source.read(min(BLOCK_BYTES, left)))):
        left -= len(block)
        yield block


def _line_start(source: Any, position: int) -> int:
    """The start of the first line that does not start before a position; the end of the file if
    there is none."""
    if not position:
        return 0
    at = position - 1  # a line may start exactly at the position: the byte before shows it
    source.seek(at)
    while block := bytes(source.read(_LINE_BYTES)):
        found = block.find(b"\n")
        if found >= 0:
            return at + found + 1
        at += len(block)
    return at


def _blocks(data: Iterator[bytes]) -> Iterator[bytes]:
    """Bytes as whole lines; the last one may lack its end."""
    rest = b""
    for block in data:
        last = block.rfind(b"\n") + 1
        if last:
            yield rest + block[:last]
            rest = block[last:]
        else:
            rest += block
    if rest:
        yield rest


# Compressed files. A truncated or damaged one is an error that names it, and that a retry does not
# resolve.


_COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_STREAMS: dict[str, Callable[[], Any]] = {
    "gzip": lambda: zlib.decompressobj(wbits=31),
    "bz2": bz2.BZ2Decompressor,
}
_MAGIC = {
    b"\x1f\x8b\x08": "gzip (.gz)",
    b"BZh91AY&SY": "bzip2 (.bz2)",
    b"\x28\xb5\x2f\xfd": "zstandard (.zst)",
    b"\xfd7zXZ\x00": "xz",
    b"PK\x03\x04": "zip",
    b"PAR1": "Parquet",
}


def compression_of(path: str) -> str:
    """The compression of a file by its name; "" for none."""
    return next((name for suffix, name in _COMPRESSED.items() if path.endswith(suffix)), "")


def _require_text(path: str, begin: bytes) -> None:
    """Check that a plain text file is not a compressed file under another name. Raises:
    SourceUnreadable."""
    for magic, name in _MAGIC.items():
        if begin.startswith(magic):
            raise SourceUnreadable(
                "the content of a file of the source does not match its name",
                resource=path,
                found=f"the first bytes of {name}",
                expected="text, or a name that ends in .gz, .bz2 or .zst",
                remedy="Correct the file's name, or the format of the source",
            )


def _unpacked(source: Any, codec: str, path: str) -> Iterator[bytes]:
    """The content of a compressed file, including several concatenated streams. Raises:
    SourceUnreadable."""
    try:
        if not source.read(1):
            raise EOFError("the file is empty")
        source.seek(0)
        if codec in _STREAMS:
            yield from _streams(source, _STREAMS[codec])
            return
        stream = pa.CompressedInputStream(pa.PythonFile(source, mode="r"), codec)
        while block := bytes(stream.read(BLOCK_BYTES)):
            yield block
    except (EOFError, zlib.error, OSError, pa.ArrowInvalid) as error:
        raise SourceUnreadable(
            "a compressed file of the source is damaged or truncated",
            resource=path,
            found=str(error)[:200] or type(error).__name__,
            expected="a whole file",
            remedy="Write the file again",
        ) from error


def _streams(source: Any, make: Callable[[], Any]) -> Iterator[bytes]:
    rest, stream = b"", make()
    while rest or (rest := bytes(source.read(_PACKED_BYTES))):
        if stream is None:
            # Some writers pad the end of a file with zeros.
            rest = rest.lstrip(b"\0")
            stream = make() if rest else None
            continue
        yield stream.decompress(rest)
        rest = stream.unused_data if stream.eof else b""
        stream = None if stream.eof else stream
    if stream is not None:
        raise EOFError("the file ends within a compressed stream")
