"""Edits of a data file: its rows in order, without some, and with new values for others.

A row group that nothing happens to is copied as bytes, one whose rows are all dropped is left out.
Where only values of some columns change, these columns are encoded and the others copied; else its
rows are encoded. A file whose row groups cannot be copied (`cannot_be_edited`) is encoded as a
whole, which is always right. This module reads no log, and knows nothing of why rows change.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from enum import Enum
from typing import BinaryIO, Final, Self

import numpy as np
import pyarrow as pa
from pyroaring import BitMap64

from tandem.delta.datafiles.copyable import GROUP_ROWS as ROWS_TOGETHER
from tandem.delta.datafiles.copyable import Unfit, cannot_be_edited, table_of, written_by_us
from tandem.delta.datafiles.encoded_columns import (
    CannotEncode,
    ColumnEncoder,
    NewValues,
    Positions,
    Replacement,
)
from tandem.delta.datafiles.footer import FileFooter, FooterInvalid, RowGroup, parse_group
from tandem.delta.datafiles.joined_files import (
    MOST_GROUPS,
    ChunkSource,
    CopySource,
    FloatColumns,
    JoinedFile,
    copying,
    opened,
    read_back,
)
from tandem.delta.datafiles.progressions import NOWHERE
from tandem.delta.datafiles.reader import (
    BATCH_ROWS,
    DataFileReader,
    RowOrigin,
    TableFormat,
    require_positions,
)
from tandem.delta.datafiles.row_ids import (
    MOST_ROWS,
    RowIdColumns,
    encoded_row_ids,
    with_row_ids,
    without_row_ids,
)
from tandem.delta.datafiles.stats import FloatStatistics
from tandem.delta.datafiles.writer import (
    GROUP_BYTES,
    GROUP_ROWS,
    Describe,
    ParquetDataWriter,
    WrittenFile,
    compact_leaves,
    encoding_like,
)
from tandem.errors import CountMismatch, DataFileMissing
from tandem.storage.paths import object_path
from tandem.storage.store import Store

_TINY: Final = 2_048
"""Row groups of fewer rows are encoded together if several in a row change: each costs as much as
encoding about so many rows."""
_ID_BYTES: Final = 8 * MOST_ROWS
"""Versions of a row group take so much memory at most, beside its other columns that change."""
_MOST_ROWS: Final = 64 << 20
"""Rows of a row group that Arrow writes at most."""

Floats = Mapping[int, FloatStatistics]


@dataclass(frozen=True, slots=True)
class EditedFile:
    """An edit that was written and read back.

    Attributes:
        bytes_copied, bytes_encoded: of pages. Those of an earlier edit count as copied.
        whole: why all rows were encoded, None if row groups were copied where possible.
    """

    file: WrittenFile
    bytes_copied: int
    bytes_encoded: int
    whole: Unfit | None = None


class _How(Enum):
    COPIED = "copied"
    COLUMNS = "some columns encoded"
    ROWS = "rows encoded"


@dataclass(frozen=True, slots=True)
class _Piece:
    """Consecutive row groups of the source, by number, and what becomes of them."""

    first: int
    last: int
    rows: int
    how: _How
    is_tiny: bool
    """Whether each of them is."""

    def takes(self, other: _Piece) -> bool:
        """Whether the next one is encoded with it."""
        encoded = _How.COPIED not in (self.how, other.how)
        together = self.rows + other.rows <= ROWS_TOGETHER
        return encoded and self.is_tiny and other.is_tiny and together

    def with_(self, other: _Piece) -> _Piece:
        return _Piece(self.first, other.last, self.rows + other.rows, _How.ROWS, is_tiny=True)


@dataclass(frozen=True, slots=True)
class _Earlier:
    """Row groups of an earlier edit: its path, a footer with them alone, and their floats."""

    path: str
    footer: FileFooter
    floats: tuple[Floats, ...]


@dataclass(frozen=True, slots=True)
class _Splittable:
    """A source whose row groups can be copied.

    Attributes:
        footer: of the file, without columns of row ids.
        table: with the columns that the file has, in its order, without those of row ids.
        like: the schema of edits: with columns of row ids at the end, if the table has them.
        starts: the position of the first row of each row group, and the number of rows.
        row_ids: the columns of row ids that edits have.
        has_ids: whether the file has them.
    """

    source: CopySource
    footer: FileFooter
    table: TableFormat
    like: FileFooter
    starts: Positions
    encoder: ColumnEncoder
    row_ids: tuple[str, ...]
    has_ids: bool


class FileEditor:
    """Edits of one data file, which does not change.

    Each edit starts from the file itself. Row groups that an earlier edit by this editor has
    encoded with the same drops and new values are copied from it. Not for several threads at once.

    Args:
        path: of the file, for the store: decoded, relative to the root or absolute.
        size, rows: of the file, as the log says.
        prefix: folder of the edits below the root (`names`).
        partition_values: as they will be logged.
        origin: of the ids that its rows do not have in the file; without it they stay without.
        describe: called for each edit after it is closed.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        size: int,
        rows: int,
        table: TableFormat,
        *,
        prefix: str,
        partition_values: Mapping[str, str | None],
        origin: RowOrigin | None = None,
        describe: Describe | None = None,
    ) -> None:
        self._store = store
        self._path = path
        self._size = size
        self._rows = rows
        self.table = table
        self._prefix = prefix
        self._values = dict(partition_values)
        self.origin = origin
        self._describe = describe
        self._found: _Splittable | Unfit | None = None
        self.floats: dict[tuple[int, tuple[str, ...]], Floats] = {}
        """Of the file, by row group and columns."""
        self.earlier: dict[bytes, _Earlier] = {}
        """By the key of the change."""

    def edit(
        self,
        drops: BitMap64,
        new: NewValues | None = None,
        *,
        task: int = 0,
        check: Callable[[], None] = lambda: None,
    ) -> EditedFile:
        """Write the file's rows without `drops`, with new values for others.

        Args:
            drops: positions; new values for one of them are ignored.
            task: the number that the file's name shows.
            check: called often; what it raises ends the edit.
        Raises:
            ValueError: all rows are dropped, or `new` does not fit the file and the table.
            CorruptDeletionVector: `drops` names a row that the file does not have.
            CountMismatch: the file has another number of rows than the log says.
            DataFileMissing, StorageError, UnsupportedFeature: as `DataFileReader` and
                `ParquetDataWriter`, and if what was written is not read back. Then there is no new
                file.
        """
        require_positions(drops, self._rows, self._path)
        if len(drops) >= self._rows:
            raise ValueError(f"an edit of {self._path} drops all of its {self._rows} rows")
        dropped = np.asarray(drops.to_array()).astype(np.int64)
        change = Replacement.of(self._rows, dropped, new, self.table.data_schema)
        found = self._source()
        if isinstance(found, _Splittable):
            if change.columns.keys() <= {*found.table.data_schema.names, *self.table.row_ids}:
                try:
                    return self._split(found, change, task, check)
                except CannotEncode as error:  # seen only when its rows are decoded
                    found = error.why
            else:
                found = Unfit.COLUMNS
        return replace(self._whole(change, task, check), whole=found)

    def _source(self) -> _Splittable | Unfit:
        if self._found is None:
            with copying(self._path, self.table):
                source = CopySource.read(self._store, self._path, self._size)
            self._found = self._judge(source)
        return self._found

    def _judge(self, source: CopySource) -> _Splittable | Unfit:
        footer = source.footer
        if footer is None:
            return Unfit.FOOTER
        self._require_rows(footer.rows)
        try:
            footer = without_row_ids(footer, self.table.row_ids)
        except FooterInvalid:
            return Unfit.FOOTER
        has_ids = footer is not source.footer
        ids = self.table.row_ids if has_ids or self.origin is not None else ()
        if ids and any(group.rows > MOST_ROWS for group in footer.groups):
            return Unfit.FOOTER
        table = table_of(footer, self.table.without_row_ids)
        if table is None:
            return Unfit.COLUMNS
        why = cannot_be_edited(footer, table, written_by_us(table))
        if why is not None:
            return why
        starts = np.cumsum([0, *(group.rows for group in footer.groups)], dtype=np.int64)
        like = with_row_ids(footer, self.table) if ids else footer
        encoder = ColumnEncoder(footer, table)
        return _Splittable(source, footer, table, like, starts, encoder, ids, has_ids)

    def _require_rows(self, found: int) -> None:
        if found != self._rows:
            raise CountMismatch(
                "the number of rows in a data file differs from the log",
                resource=self._path,
                found=found,
                expected=str(self._rows),
                remedy="Restore the file, or the table to a version without it",
            )

    def _split(
        self, found: _Splittable, change: Replacement, task: int, check: Callable[[], None]
    ) -> EditedFile:
        """Raises: CannotEncode, and as `edit`."""
        pieces = _pieces(found, change)
        joined = JoinedFile(self._store, self._prefix, found.table, found.like, task, self._values)
        try:
            with (
                copying(self._path, self.table),
                _Edit(self, found, change, joined, check) as edit,
            ):
                for piece in pieces:
                    check()
                    edit.add(piece)
            self._require_written(joined.rows, change, joined.path)
            file = joined.close(self._describe)
        except BaseException:
            joined.abort()
            raise
        for record in edit.encoded:
            groups = joined.encoded[record.first : record.first + len(record.floats)]
            written = tuple(parse_group(each, file.size) for each in groups)
            footer = replace(
                found.like, groups=written, version=joined.version, creator=joined.creator
            )
            self.earlier[record.key] = _Earlier(joined.path, footer, tuple(record.floats))
        return EditedFile(file, edit.bytes_copied, edit.bytes_encoded)

    def _whole(self, change: Replacement, task: int, check: Callable[[], None]) -> EditedFile:
        """All rows encoded, with the columns that the table has."""
        footer = b""

        def described(path: str, size: int, data: bytes) -> bytes:
            nonlocal footer
            footer = data
            return b"" if self._describe is None else self._describe(path, size, data)

        names = self.table.data_schema.names
        with self.reader(names) as reader:
            self._require_rows(reader.num_rows)
            with ParquetDataWriter(
                self._store,
                self._prefix,
                self.table,
                partition_values=self._values,
                task=task,
                dictionary=encoding_like(reader.metadata, self.table),
                describe=described,
            ) as writer:
                for batch in _changed(reader, range(len(reader.row_groups)), 0, change):
                    check()
                    writer.write(batch)
        [file] = writer.files
        path = object_path(file.path)
        try:
            self._require_written(file.rows, change, path)
            read_back(self._store, path, footer, file.size, file.rows, [])
        except BaseException:
            self._store.delete([path])
            raise
        return EditedFile(file, 0, file.size)

    def reader(self, names: Sequence[str], data: bytes | None = None) -> DataFileReader:
        """Of these columns of the file, `data` being its content if it is small."""
        return DataFileReader(
            self._store,
            self._path,
            self.table,
            partition_values=self._values,
            columns=names,
            dictionaries=True,
            data=data,
            origin=self.origin,
        )

    def _require_written(self, rows: int, change: Replacement, path: str) -> None:
        expected = self._rows - len(change.dropped)
        if rows != expected:
            raise CountMismatch(
                "an edit of a data file does not have the file's rows",
                resource=path,
                found=rows,
                expected=f"{expected}: {self._rows} of {self._path}, {len(change.dropped)} dropped",
                remedy="Nothing was published; run the operation again. If it fails again, "
                "restore the file, or the table to a version without it",
            )


@dataclass(slots=True)
class _Encoded:
    """Row groups that an edit has encoded: the key of their change, and the number of the first."""

    key: bytes
    first: int
    floats: list[Floats]


class _Edit:
    """One edit while it is written. Use as a context manager."""

    def __init__(
        self,
        editor: FileEditor,
        found: _Splittable,
        change: Replacement,
        joined: JoinedFile,
        check: Callable[[], None],
    ) -> None:
        self._editor = editor
        self._found = found
        self._change = change
        self._joined = joined
        self._check = check
        self._ids = found.row_ids
        self._kept_ids: RowIdColumns | None = None
        versions = change.columns.get(self._ids[1]) if self._ids else None
        self._clears_versions = (
            versions is not None and not found.has_ids and versions.null_count == len(versions)
        )
        self._open = ExitStack()
        self._readers: dict[tuple[str, ...], DataFileReader] = {}
        self._float_columns: dict[tuple[str, ...], FloatColumns] = {}
        self._sources: dict[str, BinaryIO] = {}
        self.bytes_copied = 0
        self.bytes_encoded = 0
        self.encoded: list[_Encoded] = []

    def add(self, piece: _Piece) -> None:
        """Raises: CannotEncode; FooterInvalid, StorageError, OSError."""
        group = self._found.footer.groups[piece.first]
        if piece.how is _How.COPIED and not self._ids:
            floats = self._floats(piece.first, self._found.table.file_schema.names)
            self._copy(self._source(), self._found.footer, group, floats)
            return
        key = self._key(piece)
        if self._copy_earlier(key):
            return
        record = _Encoded(key, self._joined.count, [])
        if piece.how is _How.ROWS or not self._encode_columns(piece, group, record):
            self._encode_rows(piece, record)
        self.encoded.append(record)

    def _copy_earlier(self, key: bytes) -> bool:
        """Copy what an earlier edit has encoded; False if there is nothing."""
        earlier = self._editor.earlier.get(key)
        if earlier is None:
            return False
        try:
            source = self._earlier_source(earlier.path)
        except DataFileMissing:  # it was not published, and may be deleted at any time
            del self._editor.earlier[key]
            return False
        with copying(earlier.path, self._found.table):
            for group, floats in zip(earlier.footer.groups, earlier.floats, strict=True):
                self._copy(source, earlier.footer, group, floats)
        return True

    def _key(self, piece: _Piece) -> bytes:
        """Equal for pieces of one source that become the same row groups."""
        starts = self._found.starts
        change = self._change.between(int(starts[piece.first]), int(starts[piece.last + 1]))
        place = f"{piece.how} {piece.first} {piece.last} "
        return place.encode() + change.digest()

    def _copy(self, source: BinaryIO, footer: FileFooter, group: RowGroup, floats: Floats) -> None:
        self._joined.copy(source, footer, group, floats)
        self.bytes_copied += group.size

    def _encode_columns(self, piece: _Piece, group: RowGroup, record: _Encoded) -> bool:
        """Encode the columns that change, and copy the others, but for row ids that the file does
        not have; False, with nothing done, if that would take too much memory."""
        number, fields = piece.first, self._found.table.file_schema.fields
        new = {} if piece.how is _How.COPIED else self._change.columns
        columns = [n for n, field in enumerate(fields) if field.name in new]
        ids = [name for name in self._ids if name in new and not self._clears_versions]
        names = [*(fields[n].name for n in columns), *ids]
        parts: list[ChunkSource] = []
        most = GROUP_BYTES + (_ID_BYTES if self._ids else 0)
        if names:
            reader = self._reader(names)
            batches, held = [], 0
            for batch in self._batches(reader, number, number):
                batches.append(batch)
                held += batch.nbytes
                if held > most:
                    return False
            decoded = sum(batch.num_rows for batch in batches)
            if decoded != group.rows:
                raise FooterInvalid(f"{decoded} rows in row group {number}, not {group.rows}")
            parts = self._encode(columns, pa.Table.from_batches(batches), number, reader)
        parts += self._other_ids(number, group, ids)
        changed = {*self._found.encoder.leaves(columns)}
        kept = {n: chunk for n, chunk in enumerate(group.chunks) if n not in changed}
        others = [field.name for n, field in enumerate(fields) if n not in columns]
        floats = self._floats(number, others)
        part = ChunkSource(self._source(), self._found.footer, kept, floats)
        self.bytes_copied += sum(chunk.data.size for chunk in kept.values())
        self._assemble(group.rows, [part, *parts], record)
        return True

    def _other_ids(
        self, number: int, group: RowGroup, changed: Collection[str]
    ) -> list[ChunkSource]:
        """The columns of row ids of a row group whose numbers stay, perhaps not in all rows."""
        names = [name for name in self._ids if name not in changed]
        if not names:
            return []
        if self._kept_ids is None:
            source, editor = self._found.source, self._editor
            assert source.footer is not None
            in_file = (self._source(), source.footer) if self._found.has_ids else None
            columns = RowIdColumns(
                source.store, source.path, editor.table, editor.origin, in_file=in_file
            )
            self._kept_ids = self._open.enter_context(columns)
        start = int(self._found.starts[number])
        changed_rows = self._change.between(start, start + group.rows).positions - start
        cleared = changed_rows if self._clears_versions else NOWHERE
        parts = self._kept_ids.of(number, group, start, names, cleared)
        self.bytes_copied += sum(c.data.size for part in parts for c in part.chunks.values())
        return parts

    def _encode_rows(self, piece: _Piece, record: _Encoded) -> None:
        columns = range(len(self._found.table.file_schema))
        reader = self._reader([*self._found.table.file_schema.names, *self._ids])
        batches: list[pa.RecordBatch] = []

        def flush() -> None:
            rows = pa.Table.from_batches(batches)
            batches.clear()
            parts = self._encode(columns, rows, piece.first, reader)
            self._assemble(rows.num_rows, parts, record)

        held = held_rows = 0
        for batch in self._batches(reader, piece.first, piece.last):
            batches.append(batch)
            held, held_rows = held + batch.nbytes, held_rows + batch.num_rows
            if held >= GROUP_BYTES or held_rows >= GROUP_ROWS:
                flush()
                held = held_rows = 0
        if batches:
            flush()

    def _encode(
        self, columns: Sequence[int], rows: pa.Table, number: int, reader: DataFileReader
    ) -> list[ChunkSource]:
        like = self._found.footer.groups[number]
        dictionary = compact_leaves(reader.metadata, number)
        parts = self._found.encoder.encode(columns, rows, like, dictionary)
        ids = [name for name in self._ids if name in rows.column_names]
        if ids:
            parts.append(encoded_row_ids(rows.select(ids), self._editor.table, like))
        self.bytes_encoded += sum(c.data.size for part in parts for c in part.chunks.values())
        return parts

    def _assemble(self, rows: int, parts: Sequence[ChunkSource], record: _Encoded) -> None:
        if self._joined.count >= MOST_GROUPS:
            raise CannotEncode(f"more than {MOST_GROUPS} row groups", Unfit.SMALL)
        self._joined.assemble(rows, parts)
        record.floats.append({n: each for part in parts for n, each in part.floats.items()})

    def _batches(self, reader: DataFileReader, first: int, last: int) -> Iterator[pa.RecordBatch]:
        """Rows of row groups, changed."""
        start = int(self._found.starts[first])
        for batch in _changed(reader, range(first, last + 1), start, self._change):
            self._check()
            yield batch

    def _floats(self, number: int, names: Sequence[str]) -> Floats:
        """The statistics of the floats in these columns of a row group."""
        known, key = self._editor.floats, (number, tuple(names))
        if key not in known:
            columns = self._float_columns.get(key[1])
            if columns is None:
                found = self._found
                columns = self._open.enter_context(
                    FloatColumns(
                        found.source.store,
                        found.source.path,
                        found.table,
                        columns=names,
                        data=found.source.data,
                    )
                )
                self._float_columns[key[1]] = columns
            known[key] = columns.summaries(number)
        return known[key]

    def _reader(self, names: Sequence[str]) -> DataFileReader:
        key = tuple(names)
        if key not in self._readers:
            source, editor = self._found.source, self._editor
            reader = editor.reader(names, source.data)
            self._readers[key] = self._open.enter_context(reader)
        return self._readers[key]

    def _source(self) -> BinaryIO:
        if "" not in self._sources:
            self._sources[""] = self._open.enter_context(self._found.source.open())
        return self._sources[""]

    def _earlier_source(self, path: str) -> BinaryIO:
        if path not in self._sources:
            opened_ = opened(self._found.source.store, path)
            self._sources[path] = self._open.enter_context(opened_)
        return self._sources[path]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()


def _pieces(found: _Splittable, change: Replacement) -> list[_Piece]:
    """What becomes of the row groups, in order; those without rows that stay are left out."""
    dropped = np.diff(np.searchsorted(change.dropped, found.starts))
    changed = np.diff(np.searchsorted(change.positions, found.starts))
    some = not change.columns.keys() >= {*found.table.data_schema.names}
    pieces: list[_Piece] = []
    for number, group in enumerate(found.footer.groups):
        if dropped[number] == group.rows:
            continue
        if not dropped[number] and not changed[number]:
            how = _How.COPIED
        elif not dropped[number] and some and group.rows <= _MOST_ROWS:
            how = _How.COLUMNS
        else:
            how = _How.ROWS
        piece = _Piece(number, number, group.rows, how, is_tiny=group.rows < _TINY)
        if pieces and pieces[-1].takes(piece):
            pieces[-1] = pieces[-1].with_(piece)
        else:
            pieces.append(piece)
    if len(pieces) > MOST_GROUPS:
        raise CannotEncode(f"{len(pieces)} row groups", Unfit.SMALL)
    return pieces


def _changed(
    reader: DataFileReader, groups: range, start: int, change: Replacement
) -> Iterator[pa.RecordBatch]:
    """The rows of row groups, the first of which is at position `start`, changed."""
    rows = max(1, min(BATCH_ROWS, GROUP_BYTES // reader.row_bytes))
    for batch in reader.batches(row_groups=groups, batch_rows=rows):
        changed = change.apply(batch, start)
        start += batch.num_rows
        if changed.num_rows:
            yield changed
