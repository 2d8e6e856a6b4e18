"""Writes data files of a table from Arrow record batches: streaming, split at a target size, with
statistics.

A file appears in the store when it is closed, complete, under its final unique path; nothing
refers to it yet. This module does not touch the log.

**Codec.** The one that the caller passes, or the table's `delta.parquet.compression.codec`, or by
default zstd at level 1: on columns like those of the flights data it is about a third smaller than
snappy and takes a tenth more time; readers of Parquet have supported it for years.

**Encoding overlaps decoding.** Row groups are encoded by a thread of the writer while the
caller reads on; pyarrow releases the interpreter's lock in both.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final, Self
from urllib.parse import quote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tandem.delta.datafiles.bloom_filters import FilterOptions, filter_options
from tandem.delta.datafiles.conform import all_nullable, relabel
from tandem.delta.datafiles.footer_edit import TailBuffer, with_floats
from tandem.delta.datafiles.reader import TableFormat
from tandem.delta.datafiles.stats import (
    FloatBounds,
    from_footer,
    has_float,
    parquet_leaves,
    paths_without_floats,
)
from tandem.delta.partitions import NULL_PARTITION, to_scalar
from tandem.delta.schema import Field, to_arrow_field
from tandem.errors import UnsupportedFeature
from tandem.storage.store import Store

# Paths of new data files: in the folder of their attempt, and there in folders of their partition
# values, as Hive names them (decision 0197).
#
# Delta gives no meaning to the paths of data files, but readers that open them by a scan of
# Parquet files take partition values from such folders: Polars, for one.


_ESCAPED: Final = re.compile(r"""[\x00-\x1f"#%'*/:=?\\\x7f{\[\]^]""")
"""What Hive and Spark escape in a folder's name (Spark's `ExternalCatalogUtils`)."""
_QUOTED: Final = re.compile(
    r"""[\x00-\x20"#%<>?\[\\\]^`{|}\x7f-\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]"""
)
"""What `java.net.URI` quotes in a path: all but its legal characters, and beyond ASCII control and
space characters alone."""
_LONGEST: Final = 255
"""Bytes of a folder's name that file systems allow."""
_LONGEST_OF_ALL: Final = 512
"""Bytes of all of them: a key of S3 has 1,024 at most."""


def new_path(prefix: str, values: Mapping[str, str | None], task: int) -> str:
    """The path of a new file, relative to the root and decoded:
    `<prefix>/<column>=<value>/part-<task>-<uuid4>.parquet`.

    Args:
        prefix: the folder of the attempt, without a slash at its end.
        values: partition values as they will be logged; left out if they are too long for a path.
    """
    folders = [
        f"{_escaped(name)}={NULL_PARTITION if value is None else _escaped(value)}"
        for name, value in values.items()
    ]
    sizes = [len(folder.encode()) for folder in folders]
    if any(size > _LONGEST for size in sizes) or sum(sizes) > _LONGEST_OF_ALL:
        folders = []
    return "/".join([prefix, *folders, f"part-{task:05d}-{uuid.uuid4()}.parquet"]).lstrip("/")


def logged(path: str) -> str:
    """How the log names the object at a path: percent-encoded (Delta's protocol, "Add File"), just
    where Java's `URI` encodes. Spark's VACUUM compares encoded paths: it deletes a live file that
    the log spells in another way."""
    return _QUOTED.sub(lambda found: quote(found[0], safe=""), path)


def _escaped(text: str) -> str:
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)


CODEC = "delta.parquet.compression.codec"
DEFAULT_CODEC = "zstd"
_CODECS = {
    "none": "none",
    "uncompressed": "none",
    "snappy": "snappy",
    "gzip": "gzip",
    "zstd": "zstd",
    "lz4": "lz4",
    "lz4_raw": "lz4",
    "brotli": "brotli",
}

GROUP_ROWS = 1 << 20
"""Rows of a row group at most."""
GROUP_BYTES = 64 << 20
"""Arrow bytes of a row group at most: two are in memory, one being filled, one being encoded."""
MOST_HELD = 256 << 20
"""Arrow bytes that the writers of one task hold in all, if they can."""
LEAST_GROUP = 1 << 20
"""Arrow bytes that are worth a row group of their own."""
_SAVED = 0.7
"""A dictionary is used if values take this share of their bytes with it, at most."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A closed data file. `path` is relative to the root, as the log names it; `size` in
    bytes, `rows` physical, `modified_ms` Unix milliseconds, `stats` Delta's JSON text. `facts` is
    what the writer's `describe` made of its footer."""

    path: str
    size: int
    rows: int
    modified_ms: int
    stats: str
    partition_values: Mapping[str, str | None] = field(default_factory=dict)
    facts: bytes = b""


Describe = Callable[[str, int, bytes], bytes]
"""Makes something of a closed file by its path, size in bytes, and footer. It must not raise."""


@dataclass(frozen=True, slots=True)
class _Compression:
    """pyarrow's name of a codec, and its level; None for its default."""

    codec: str
    level: int | None = None


def codec_of(configuration: Mapping[str, str]) -> str:
    """pyarrow's name of the codec that a table's properties set. Raises: UnsupportedFeature."""
    codec = configuration.get(CODEC, DEFAULT_CODEC).lower()
    if codec not in _CODECS:
        raise UnsupportedFeature(
            "the table asks for a Parquet codec that Tandem does not write",
            field=f"metaData.configuration.{CODEC}",
            found=codec,
            expected=", ".join(sorted(_CODECS)),
            remedy=f"Set {CODEC} to one of them",
        )
    return _CODECS[codec]


class ParquetDataWriter:
    """Writes rows of one partition to one file, or several of about `target_size` bytes each.

    Args:
        prefix: folder of the files below the root.
        partition_folders: whether they are in folders of their partition values there.
        table: batches have the columns of `table.data_schema`, in that order; files those of
            `table.file_schema`.
        partition_values: as they will be logged (physical names under column mapping).
        target_size: bytes at which a file is closed and another one started; 0 for never. A file
            exceeds it by less than a row group.
        task: the number of the task, which the file name shows.
        dictionary: Parquet paths to encode with a dictionary; None lets the encoder try each.
        codec: a Parquet codec (`_CODECS`) instead of the table's; "" for the table's.
        codec_level: the codec's level; its own default otherwise.
        checksums: write a checksum of each page, which readers may verify.
        describe: called for each file after it is closed.

    Use as a context manager: an exception discards the unfinished file.
    """

    def __init__(
        self,
        store: Store,
        prefix: str,
        table: TableFormat,
        *,
        partition_values: Mapping[str, str | None] | None = None,
        partition_folders: bool = True,
        target_size: int = 0,
        task: int = 0,
        dictionary: Sequence[str] | None = None,
        codec: str = "",
        codec_level: int | None = None,
        checksums: bool = False,
        describe: Describe | None = None,
    ) -> None:
        self._store = store
        self._describe = describe
        self._checksums = checksums
        self._prefix = prefix.rstrip("/")
        self._table = table
        # All optional, as Spark writes them: callers check before what must not be null.
        self._columns = all_nullable(table.file_schema).fields
        self._names = list(table.data_schema.names)
        self._values = dict(partition_values or {})
        self._repeated = {
            field.name: to_scalar(
                self._values[field.physical_name],  # NULL is a value, too: never a default
                field.type,
                resource=self._prefix,
                column=field.name,
            )
            for field in self._columns
            if field.name in table.partition_columns
        }
        if dictionary is not None:
            names = (field.physical_name for field in self._columns if field.name in self._repeated)
            dictionary = [*dictionary, *names]
        self._folders = self._values if partition_folders else {}
        self._target = target_size
        self._task = task
        self._codec = _Compression(
            _CODECS[codec] if codec else codec_of(table.configuration), codec_level
        )
        self._dictionary = dictionary
        self._schema: pa.Schema | None = None
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._pending_bytes = 0
        self._file: _OpenFile | None = None
        self._done: list[WrittenFile] = []
        self._encoder = ThreadPoolExecutor(1, "tandem-encode")
        self._encoding: Future[None] | None = None

    def write(self, batch: pa.RecordBatch) -> None:
        """Add rows; they keep their order. The columns must be the table's logical data columns
        (without those of partitions) in its order. Raises: ValueError."""
        if batch.num_rows == 0:
            return
        if batch.schema.names != self._names:
            # By position alone, two columns of the same type could be swapped silently.
            raise ValueError(f"columns {batch.schema.names} are not {self._names}")
        self._pending.append(self._physical(batch))
        self._pending_rows += batch.num_rows
        self._pending_bytes += batch.nbytes
        if self._pending_rows >= GROUP_ROWS or self._pending_bytes >= GROUP_BYTES:
            self._flush()

    def close(self) -> tuple[WrittenFile, ...]:
        """Finish, and return the files in row order. Without rows no file is written."""
        try:
            self._wait()
            # In this thread: nothing is left to overlap with, and a small file needs no other.
            if self._pending:
                self._encode(self._take_pending())
            self._finish_file()
        finally:
            self.abort()
        return tuple(self._done)

    @property
    def held(self) -> int:
        """Arrow bytes of the rows that are in no row group yet."""
        return self._pending_bytes

    def end_group(self, rows: int, size: int) -> None:
        """End the row group here if it has so many rows, or Arrow bytes."""
        if self._pending_rows >= rows or self._pending_bytes >= size:
            self._flush()

    def flush(self) -> None:
        """Write the rows so far as a row group, to free memory."""
        if self._pending:
            self._wait()
            self._encode(self._take_pending())

    @property
    def files(self) -> tuple[WrittenFile, ...]:
        """The files that were written, once closed."""
        return tuple(self._done)

    def _physical(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The batch under physical names, every column in the encoding of the file's first
        batch."""
        found = [
            _repeat(self._repeated[field.name], batch.num_rows)
            if field.name in self._repeated
            else batch.column(field.name)
            for field in self._columns
        ]
        if self._schema is None:
            fields = zip(self._columns, found, strict=True)
            self._schema = pa.schema([_file_field(field, array.type) for field, array in fields])
        arrays = [
            encoded_as(array, field.type) for array, field in zip(found, self._schema, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)

    def _flush(self) -> None:
        batches = self._take_pending()
        self._wait()
        self._encoding = self._encoder.submit(self._encode, batches)

    def _take_pending(self) -> list[pa.RecordBatch]:
        batches, self._pending = self._pending, []
        self._pending_rows = self._pending_bytes = 0
        return batches

    def _wait(self) -> None:
        if self._encoding is not None:
            encoding, self._encoding = self._encoding, None
            encoding.result()

    def _encode(self, batches: list[pa.RecordBatch]) -> None:
        table = pa.Table.from_batches(batches)
        if any(pa.types.is_dictionary(f.type) for f in table.schema):
            # The encoder keeps a dictionary only as long as it does not change.
            table = table.unify_dictionaries()
        if self._file is None:
            self._file = _OpenFile(
                self._store,
                new_path(self._prefix, self._folders, self._task),
                table.schema,
                self._codec,
                self._dictionary,
                self._checksums,
                self._table.row_ids,
                filter_options(self._table.filters, self._columns, table),
            )
        self._file.write(table)
        if self._target and self._file.size >= self._target:
            self._finish_file()

    def _finish_file(self) -> None:
        if self._file is None:
            return
        file, self._file = self._file, None
        metadata, size = file.close()
        describe, path = self._describe, logged(file.path)
        self._done.append(
            WrittenFile(
                path=path,
                size=size,
                rows=metadata.num_rows,
                modified_ms=time.time_ns() // 1_000_000,
                stats=from_footer(
                    metadata,
                    self._table.without_row_ids.data_schema,
                    self._table.configuration,
                    file.floats,
                ),
                partition_values=self._values,
                facts=b"" if describe is None else describe(path, size, file.footer),
            )
        )

    def abort(self) -> None:
        """Discard the unfinished file."""
        self._encoder.shutdown(wait=True, cancel_futures=True)
        if self._file is not None:
            self._file.abort()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *_: object) -> None:
        if exc_type is None:
            self.close()
        else:
            self.abort()


class _OpenFile:
    """One unfinished Parquet file."""

    def __init__(
        self,
        store: Store,
        path: str,
        schema: pa.Schema,
        compression: _Compression,
        dictionary: Sequence[str] | None,
        checksums: bool,
        row_ids: Sequence[str],
        filters: FilterOptions | None,
    ) -> None:
        self.path = path
        self.floats = FloatBounds()
        self.footer = b""
        """As it was written, once closed."""
        self._has_floats = any(has_float(column.type) for column in schema)
        self._metadata: list[Any] = []
        self._sink: Any = store.open_output(path)
        self._tail = TailBuffer(self._sink)
        self._writer = arrow_writer(
            self._tail,
            schema,
            dictionary=dictionary,
            row_ids=row_ids,
            compression=compression.codec,
            compression_level=compression.level,
            write_page_checksum=checksums,
            bloom_filter_options=filters,
            metadata_collector=self._metadata,
        )

    @property
    def size(self) -> int:
        return int(self._sink.tell())

    def write(self, table: pa.Table) -> None:
        for start in range(0, table.num_rows, GROUP_ROWS):
            group = table.slice(start, GROUP_ROWS)
            self.floats.add(group)
            self._writer.write_table(group, row_group_size=group.num_rows)

    def close(self) -> tuple[Any, int]:
        """(footer, size in bytes); the file is visible afterwards."""
        self._tail.hold()
        self._writer.close()
        self._tail.release(self._amended_footer)
        size = self.size
        self._sink.close()
        return self._metadata[0], size

    def _amended_footer(self, footer: bytes) -> bytes:
        self.footer = with_floats(footer, self.floats) if self._has_floats else footer
        return self.footer

    def abort(self) -> None:
        self._writer.is_open = False
        abort = getattr(self._sink, "abort", None)
        if abort is not None:
            abort()


def arrow_writer(
    sink: Any,
    schema: pa.Schema,
    *,
    dictionary: Sequence[str] | None,
    row_ids: Sequence[str] = (),
    **options: Any,
) -> pq.ParquetWriter:
    """Arrow's writer of a data file.

    Args:
        dictionary: Parquet paths to encode with a dictionary; None lets it try each.
        row_ids: the names of the columns of row ids, which mostly ascend by one, and versions.
        options: of `pq.ParquetWriter`.
    """
    if not {*row_ids}.isdisjoint(schema.names):
        paths = [leaf.path for leaf in parquet_leaves(schema)]
        chosen = {*(paths if dictionary is None else dictionary), row_ids[1]} - {row_ids[0]}
        dictionary = [path for path in paths if path in chosen]
        if row_ids[0] in schema.names:
            options["column_encoding"] = {row_ids[0]: "DELTA_BINARY_PACKED"}
    given = {
        # Ours is the logical schema in the log; Arrow's own would bring types that other readers
        # do not expect back (dictionaries, large strings).
        "store_schema": False,
        # As Spark writes them: up to 18 digits in 4 or 8 bytes, whose bounds and dictionaries are
        # cheaper than those of byte arrays (a tenth of encoding lineitem).
        "store_decimal_as_integer": True,
        # Those of floats come with the footer: Arrow's would hide NaN (`stats.FloatBounds`).
        "write_statistics": paths_without_floats(schema),
        "use_dictionary": True if dictionary is None else list(dictionary),
    }
    return pq.ParquetWriter(sink, schema, **{**given, **options})


def _repeat(value: Any, rows: int) -> Any:
    if value.is_valid and pa.types.is_string(value.type):
        zeros = pa.repeat(pa.scalar(0, pa.int32()), rows)
        return pa.DictionaryArray.from_arrays(zeros, pa.array([value], value.type))
    return pa.repeat(value, rows)


def _file_field(field_: Field, found: pa.DataType) -> pa.Field:
    return kept_dictionary(to_arrow_field(field_, physical=True).with_nullable(True), found)


def kept_dictionary(plain: pa.Field, found: pa.DataType) -> pa.Field:
    """The field of a column that is written: of dictionaries if the values `found` are."""
    if pa.types.is_dictionary(found) and pa.types.is_string(plain.type):
        return plain.with_type(pa.dictionary(pa.int32(), pa.string()))
    return plain


def encoded_as(array: Any, target: pa.DataType) -> Any:
    """The same values as `target`, a type of the same shape with other names, or a dictionary."""
    if array.type.equals(target):
        return array
    if pa.types.is_dictionary(target) and not pa.types.is_dictionary(array.type):
        return array.dictionary_encode().cast(target)
    if pa.types.is_dictionary(array.type):
        return array.cast(target)
    return relabel(array, target)


def limit_held(writers: Iterable[ParquetDataWriter], most: int = MOST_HELD) -> None:
    """Write row groups of the writers that hold most, if all together hold more than `most` Arrow
    bytes. Those that hold little are left alone: with very many writers, they hold more."""
    by_held = sorted(writers, key=lambda writer: writer.held, reverse=True)
    excess = sum(writer.held for writer in by_held) - most
    for writer in by_held:
        if excess <= 0 or writer.held < LEAST_GROUP:
            break
        excess -= writer.held
        writer.flush()


def repetitive_columns(table: TableFormat, rows: pa.Table) -> list[str] | None:
    """Parquet paths of the columns that a dictionary makes smaller, by the first rows of a file:
    for distinct values it costs a third more bytes, and time. None if a column is nested: the
    encoder is to try each then."""
    chosen = []
    for column in table.data_schema.fields:
        values = rows[column.name]
        if pa.types.is_nested(values.type):
            return None
        if pa.types.is_null(values.type):
            continue
        distinct = pc.count_distinct(values, mode="all").as_py()
        share = distinct / max(len(values), 1)
        width = values.nbytes / max(len(values), 1)
        index = max(distinct - 1, 1).bit_length() / 8
        if share * width + index < _SAVED * width:
            chosen.append(column.physical_name)
    return chosen


def encoding_like(metadata: Any, table: TableFormat) -> list[str] | None:
    """The columns to encode with a dictionary, as in a file with this footer; None, so that the
    encoder decides, where the file may have other columns, or other names for them."""
    if table.mapping != "none" or len(metadata.schema.names) < len(
        table.without_row_ids.data_schema
    ):
        return None
    return compact_columns(metadata)


def compact_columns(metadata: Any) -> list[str]:
    """Parquet paths of the columns for which a dictionary saved space in this file, to encode the
    next file of the same data alike: trying a dictionary on a column of distinct values costs more
    than writing it plainly."""
    if metadata.num_row_groups == 0:
        return []
    return [metadata.schema.column(n).path for n in compact_leaves(metadata, 0)]


def compact_leaves(metadata: Any, number: int) -> list[int]:
    """The numbers of the columns for which a dictionary saved space in a row group."""
    group = metadata.row_group(number)
    widths = {"INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8}
    chosen = []
    for index in range(group.num_columns):
        column = group.column(index)
        if not column.has_dictionary_page:
            continue
        width = widths.get(column.physical_type, 8)
        values = max(column.num_values, 1)
        if column.total_uncompressed_size < _SAVED * width * values:
            chosen.append(index)
    return chosen
