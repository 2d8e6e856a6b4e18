"""Compressed text files as byte streams. A truncated or damaged file is an error that names it, and
that a retry does not resolve."""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from tandem.errors import SourceUnreadable

READ_BYTES = 1 << 20
_COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
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


def require_text(path: str, begin: bytes) -> None:
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


class Unpacked:
    """The content of a compressed file, including several concatenated streams, as a file to be
    read sequentially. `read` raises SourceUnreadable."""

    def __init__(self, source: Any, codec: str, path: str) -> None:
        self._source = source
        self._path = path
        self._seen = False
        makers: dict[str, Callable[[], Any]] = {
            "gzip": lambda: zlib.decompressobj(wbits=31),
            "bz2": bz2.BZ2Decompressor,
        }
        self._make = makers.get(codec)
        self._stream: Any = None
        self._arrow = (
            None
            if self._make is not None
            else pa.CompressedInputStream(pa.PythonFile(source, mode="r"), codec)
        )
        self._rest = b""
        self._trailing = False

    def read(self, size: int) -> bytes:
        """Some bytes, possibly more than `size`; none at the end."""
        try:
            return self._more(size)
        except (EOFError, zlib.error, OSError, pa.ArrowInvalid) as error:
            raise SourceUnreadable(
                "a compressed file of the source is damaged or truncated",
                resource=self._path,
                found=str(error)[:200] or type(error).__name__,
                expected="a whole file",
                remedy="Write the file again",
            ) from error

    def _more(self, size: int) -> bytes:
        if self._arrow is not None:
            data = bytes(self._arrow.read(size))
            if not data and not self._seen:
                self._require_frame()
            self._seen = True
            return data
        out = bytearray()
        while len(out) < size:
            if not self._rest:
                self._rest = bytes(self._source.read(READ_BYTES))
                if not self._rest:
                    if self._stream is not None or not self._seen:
                        raise EOFError("the file ends within a compressed stream")
                    break
            self._seen = True
            if self._stream is None:
                # Some writers pad the end of a file with zeros.
                self._rest = self._rest.lstrip(b"\0") if self._trailing else self._rest
                if not self._rest:
                    continue
                assert self._make is not None
                self._stream = self._make()
            out += self._stream.decompress(self._rest)
            if self._stream.eof:
                self._rest = self._stream.unused_data
                self._stream, self._trailing = None, True
            else:
                self._rest = b""
        return bytes(out)

    def _require_frame(self) -> None:
        self._source.seek(0)
        if not self._source.read(1):
            raise EOFError("the file is empty")
