"""The text of a source's files as whole lines, read through our store.

Large files are cut at line ends into splits that are read in parallel; compressed ones cannot be
split. A Spark data source returns the lines as rows, from which Spark infers types.
"""

from __future__ import annotations

import bz2
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from tandem.delta.datafiles.file_errors import missing
from tandem.errors import ObjectNotFound, SourceUnreadable, StatementFailed
from tandem.jobs.formats import Format
from tandem.remedies import ENCODING
from tandem.spark.runtime.datasource import TaskSplits, get_work, task_splits
from tandem.storage import Store, open_store

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


# Compressed text files as byte streams. A truncated or damaged file is an error that names it, and
# that a retry does not resolve.


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


NAME = "tandem-lines"
VALUE = "value"
STRIPE_BYTES = 32 << 20
"""The approximate size that one task reads. Text is several times the size of Parquet."""
BLOCK_BYTES = 4 << 20
_BOM = b"\xef\xbb\xbf"


class PartStart(Format):
    """The start of a part of a file: its line, from 1, and whether it is inside a quoted
    value."""

    line: int
    inside: bool = False


class TextFile(Format):
    """`path` as in the source's store; the first `skip` lines are a header. `begins` are the starts
    of the parts of a file that is split; `folders` the values of columns in names of its folders.
    """

    path: str
    size: int
    skip: int = 0
    begins: tuple[PartStart, ...] = ()
    folders: tuple[str | None, ...] = ()


class LinesWork(Format):
    """The files to read; the content of the file that the option `work` names."""

    location: str
    storage_options: dict[str, str]
    files: tuple[TextFile, ...]
    encoding: str = "utf-8"


class LinesSource(DataSource):
    """`spark.read.format("tandem-lines")`; options as of `tandem.spark.runtime.datasource`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        return f"{VALUE} STRING"

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        _, data = get_work(self.options)
        return LinesReader(LinesWork.model_validate_json(data))


class LinesReader(DataSourceReader):
    def __init__(self, work: LinesWork) -> None:
        self._work = work

    def partitions(self) -> Sequence[InputPartition]:
        return plan(self._work.files)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TaskSplits)
        store = open_store(self._work.location, self._work.storage_options)
        for split_lines in partition.splits:
            file = self._work.files[split_lines.input]
            span = split_lines.of(file.size)
            for lines in read_lines(store, file.path, self._work.encoding, span.start, span.stop):
                yield pa.RecordBatch.from_arrays([pa.array(lines, pa.string())], names=[VALUE])


def plan(files: Sequence[TextFile], size: int = STRIPE_BYTES) -> list[TaskSplits]:
    """The splits that each task reads; parts are byte ranges; compressed files are not split."""
    whole = {index for index, file in enumerate(files) if compression_of(file.path)}
    return task_splits([file.size for file in files], size, whole)


def read_lines(
    store: Store, path: str, encoding: str, start: int = 0, end: int | None = None
) -> Iterator[list[str]]:
    """Lines without their ends, in lists of some megabytes. Raises: as `read_text`."""
    for text in read_text(store, path, encoding, start, end):
        yield split_lines(text)


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
    of adjacent splits: the one that contains its first byte.

    Raises: DataFileMissing; SourceUnreadable; StatementFailed for bytes that are not text in this
        encoding.
    """
    try:
        source: Any = store.open_input(path)
    except ObjectNotFound as error:
        raise missing(path) from error
    with source:
        codec = compression_of(path)
        if codec:
            # The whole file is one split; its size is not that of the text.
            unpacked = Unpacked(source, codec, path)
            blocks = _blocks(unpacked, start, None)
        else:
            blocks = _blocks(source, start, end)
        first = start == 0
        before = 0
        for block in blocks:
            if first:
                require_text(path, block[:16])
                block = block.removeprefix(_BOM)
            first = False
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
    place = f", line {before + line}, byte {error.start - begun + 1}" if before is not None else ""
    return StatementFailed(
        "a source is not text of the expected encoding",
        resource=f"{path}{place}",
        found=f"byte 0x{error.object[error.start]:02x}",
        expected=f"{encoding}, {ENCODING.in_resource}",
    )


def _blocks(source: Any, start: int, end: int | None) -> Iterator[bytes]:
    """Whole lines in large blocks."""
    if start:
        # A line that starts exactly here belongs to this split: the previous byte shows it.
        position = start - 1
        source.seek(position)
        found = -1
        while found < 0:
            block = source.read(BLOCK_BYTES)
            if not block:
                return
            found = block.find(b"\n")
            position += len(block) if found < 0 else found + 1
        rest = bytes(block[found + 1 :])
        read = position + len(rest)
    else:
        rest, position = bytes(source.read(BLOCK_BYTES)), 0
        read = len(rest)
    while True:
        # `rest` holds the bytes from `position`, the start of a line.
        if end is not None and position >= end:
            return
        last = rest.rfind(b"\n") + 1
        if end is not None and read >= end:
            # The last line of this split is the one that contains byte `end - 1`.
            stop = rest.find(b"\n", max(0, end - 1 - position)) + 1
            if stop:
                yield rest[:stop]
                return
        elif last:
            yield rest[:last]
            position, rest = position + last, rest[last:]
        block = bytes(source.read(BLOCK_BYTES))
        if not block:
            if rest:
                yield rest
            return
        rest += block
        read += len(block)
