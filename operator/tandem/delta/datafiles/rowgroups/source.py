"""A data file whose row groups are copied: what is read of it beside the bytes that are copied."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate
from typing import BinaryIO, Final, Self, cast

import pyarrow as pa

from tandem.delta.datafiles.float_bounds import FloatStatistics, has_float, leaves_of, summaries
from tandem.delta.datafiles.missing import missing, unreadable
from tandem.delta.datafiles.page_walk import PageDamaged
from tandem.delta.datafiles.reader import DataFileReader, TableFormat, arrow_schema, read_whole
from tandem.delta.datafiles.rowgroups.footer import FileFooter, FooterInvalid, parse, read_footer
from tandem.errors import DataFileMissing, ObjectNotFound, StorageError
from tandem.storage.files import read_ahead, version_of
from tandem.storage.store import Store

FOOTER: Final = 64 << 10
"""Bytes that are read at a file's end: most footers are shorter."""
_LONG_FOOTER: Final = 1 << 20
_SMALL: Final = 1 << 20
"""Files of fewer bytes are read in one request."""


@dataclass(frozen=True, slots=True)
class CopySource:
    """A data file, and the version of it of which `footer` is the footer; None if that cannot be
    parsed. `data` is the content of a small file."""

    store: Store
    path: str
    footer: FileFooter | None
    version: str | None = None
    data: bytes | None = None

    @classmethod
    def read(cls, store: Store, path: str, size: int = 0) -> CopySource:
        """Read its footer; all of a small file, if `size` says how many bytes it has. Then, a long
        footer that is most of the file is not parsed: its rows are sooner decoded. Raises:
        DataFileMissing, StorageError, OSError."""
        data = read_whole(store, path, size) if 0 < size < _SMALL else None
        with opened(store, path, data) as source:
            read_ahead(source, FOOTER)
            version = version_of(source)
            footer = None
            with suppress(FooterInvalid):  # decoding says what is wrong, if anything is
                found = read_footer(source)
                rows_are_less = 0 < size < 2 * len(found)
                if len(found) < _LONG_FOOTER or not rows_are_less:
                    footer = parse(found, source.seek(0, 2))
        return cls(store, path, footer, version, data)

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        """The file, to copy ranges of it. Raises: DataFileMissing; FooterInvalid if another object
        took its place."""
        with opened(self.store, self.path, self.data) as source:
            if version_of(source) != self.version:
                raise FooterInvalid("the file was replaced after its footer was read")
            yield source


@contextmanager
def opened(store: Store, path: str, data: bytes | None = None) -> Iterator[BinaryIO]:
    """A file of which ranges are read; `data` is the content of a small one. Raises:
    DataFileMissing, StorageError."""
    try:
        source = store.open_input(path) if data is None else cast(BinaryIO, pa.BufferReader(data))
    except ObjectNotFound as error:
        raise missing(path) from error
    with source:
        read_ahead(source, 1)
        yield source


@contextmanager
def copying(path: str, table: TableFormat) -> Iterator[None]:
    """Raises StorageError for what is wrong with the bytes of a file that are copied."""
    try:
        yield
    except PageDamaged as error:
        names = {each.physical_name: each.name for each in table.data_schema}
        raise unreadable(path, error, names) from error
    except (FooterInvalid, OSError) as error:
        raise StorageError(
            "the row groups of a data file cannot be copied",
            resource=path,
            found=str(error)[:300],
            expected="the bytes that its footer names",
            remedy="Restore the file, or the table to a version without it",
        ) from error


def share_of_columns(store: Store, path: str, size: int, names: Collection[str]) -> float | None:
    """The share of a file's pages that belongs to the top-level columns with these physical names,
    by its footer; None where that cannot be read."""
    try:
        footer = CopySource.read(store, path, size).footer
    except (DataFileMissing, StorageError, OSError):  # what needs the file says so
        return None
    every = 0 if footer is None else sum(group.size for group in footer.groups)
    if footer is None or not every:
        return None
    chunks = (chunk for group in footer.groups for chunk in group.chunks)
    belongs = tuple(f"{name}." for name in names)
    return sum(c.data.size for c in chunks if f"{c.path}.".startswith(belongs)) / every


class FloatColumns:
    """The statistics of the floats of a file's row groups, by Parquet column.

    Args:
        columns: the logical names of the columns to decode; None for all that have floats.
        data: the content of a small file.
    """

    def __init__(
        self,
        store: Store,
        path: str,
        table: TableFormat,
        *,
        columns: Collection[str] | None = None,
        data: bytes | None = None,
    ) -> None:
        schema = arrow_schema(table, table.data_schema.names)
        starts = accumulate((leaves_of(each.type) for each in schema), initial=0)
        wanted = {
            each.name: start
            for each, start in zip(schema, starts, strict=False)
            if has_float(each.type) and (columns is None or each.name in columns)
        }
        self._starts = [*wanted.values()]
        self._reader = (
            DataFileReader(store, path, table, columns=[*wanted], data=data) if wanted else None
        )

    def summaries(self, group: int) -> Mapping[int, FloatStatistics]:
        """Of the row group with this number."""
        found: dict[int, FloatStatistics] = {}
        for batch in self._batches(group):
            columns = zip(self._starts, map(pa.chunked_array, zip(batch.columns)), strict=True)
            part = summaries(columns)
            found = {n: found[n].joined(each) if n in found else each for n, each in part.items()}
        return found

    def _batches(self, group: int) -> Iterator[pa.RecordBatch]:
        if self._reader is not None:
            yield from self._reader.batches(row_groups=range(group, group + 1))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.close()
