"""A Parquet file of a checkpoint, whose size in memory is known before it is decoded.

A few bytes can stand for many: pages are compressed, and values of a dictionary are counted, not
repeated. With a limit, texts stay in their dictionaries until their sizes were added up.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.budget import Account
from tandem.delta.datafiles.pages import PagesOfColumn, footer_of, pages_of
from tandem.delta.datafiles.times import ExactParquetFile
from tandem.errors import CorruptLog, ObjectNotFound
from tandem.storage.store import Store, side_by_side

BATCH_ROWS = 65_536
_FEW_ROWS = 64
IN_MEMORY = 64 << 20
"""Files of so many bytes are read at once: one request, and what was looked at is what is read."""
_WITHOUT_A_LIMIT = 16 << 20
"""The same without a limit, where only the columns that are needed are read of larger files."""
_ENTRY_BYTES = 16
"""Of an entry of a list or map in Arrow, beside its text."""


@dataclass(frozen=True, slots=True)
class Rows:
    """Values of a top-level column without nulls: `texts` bytes in their texts, `entries` leaves
    in all. The latter two are 0 without a limit."""

    values: pa.StructArray
    texts: int = 0
    entries: int = 0


class CheckpointFile:
    """An open Parquet file whose every failure becomes `CorruptLog`, or `TooLarge`. Use as a
    context manager. `content`: all of its bytes, if they were read already."""

    def __init__(
        self, store: Store, path: str, account: Account, content: bytes | None = None
    ) -> None:
        self.path = path
        self.account = account
        try:
            self._source: Any = (
                store.open_input(path) if content is None else pa.BufferReader(content)
            )
        except ObjectNotFound as error:
            raise _absent(path) from error

    def __enter__(self) -> CheckpointFile:
        with ExitStack() as unless_opened:
            unless_opened.callback(lambda: self._source.close())  # it may be another one by then
            try:
                if self.account.limited:
                    self._read_sizes()
                # Times in `stats_parsed` are INT96 where Spark wrote them.
                self._file = ExactParquetFile(self._source, resource=self.path)
                self.schema: pa.Schema = self._file.schema
                columns = self._file.metadata.schema
                leaves = [columns.column(index) for index in range(len(columns))]
                self._leaves = [leaf.path for leaf in leaves]
            except (pa.ArrowException, OSError, ValueError) as error:
                raise unreadable(self.path, error) from error
            unless_opened.pop_all()
        # Spark writes moments so, and times without a zone never.
        self.moments = frozenset(c.path for c in leaves if c.physical_type == "INT96")
        return self

    def __exit__(self, *_: object) -> None:
        self._source.close()

    def _read_sizes(self) -> None:
        """The footer, and the whole file if it is not large."""
        size = self._source.seek(0, 2)
        if size <= min(IN_MEMORY, self.account.left // 4):
            self._source.seek(0)
            whole = self._source.read(size)
            self._source.close()
            self._source = pa.BufferReader(whole)
        self._footer = footer_of(cast(BinaryIO, self._source), self.account)

    def filled(self, path: str) -> int:
        """How many values a column has by the statistics in the footer, without nulls; 0 if they
        do not say, or without a limit."""
        if not self.account.limited:
            return 0
        if path not in self._leaves:
            return 0
        place = self._leaves.index(path)
        chunks = [group.chunks[place] for group in self._footer.groups if group.chunks[place:]]
        return sum(c.values - c.nulls for c in chunks if c.nulls is not None)

    def column(self, name: str, leaves: Sequence[str] | None = None) -> Iterator[Rows]:
        """The non-null values of one top-level struct column, a batch at a time. The caller adds
        them to the account. Raises: CorruptLog, TooLarge."""
        if name not in self.schema.names:
            return
        wanted = [name] if leaves is None else [f"{name}.{leaf}" for leaf in leaves]
        try:
            if self.account.limited:
                yield from self._measured(wanted)
                return
            for batch in self._file.iter_batches(batch_size=BATCH_ROWS, columns=wanted):
                values = _present(batch)
                if len(values):
                    yield Rows(values)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise unreadable(self.path, error) from error

    def _measured(self, wanted: Sequence[str]) -> Iterator[Rows]:
        def is_wanted(path: str) -> bool:
            return any(path == each or path.startswith(f"{each}.") for each in wanted)

        source = cast(BinaryIO, self._source)
        groups = pages_of(source, self._footer, self._leaves, is_wanted)
        pages = [column for group in groups for column in group]
        raw = sum(column.raw for column in pages)
        self.account.require(
            raw, f"{self.path}: {raw:,} bytes of {wanted[0].partition('.')[0]} without compression"
        )
        texts = sorted({column.path for column in pages if column.has_dictionary})
        if texts:
            self._file.read_dictionary(texts)
        for number, group in enumerate(groups):
            rows = self._footer.groups[number].rows
            entries = sum(max(column.values - rows, 0) for column in group)
            self.account.require(
                _ENTRY_BYTES * entries, f"{self.path}: {entries:,} entries of lists and maps"
            )
            # Within a row group: dictionaries of several cannot be in one batch.
            for batch in self._file.iter_batches(
                batch_size=self._batch_rows(group), columns=list(wanted), row_groups=[number]
            ):
                values = _decodable(_present(batch))
                if len(values):
                    size, leaves = measure(values)
                    self.account.require(size, f"{self.path}: {size:,} bytes of texts")
                    yield Rows(values.cast(_plain(values.type)), size, leaves)

    def _batch_rows(self, group: Sequence[PagesOfColumn]) -> int:
        """So few that not even texts which repeat all of one another's bytes are too much."""
        longest = sum(column.largest for column in group if column.shares_prefixes)
        if not longest:
            return BATCH_ROWS
        return max(_FEW_ROWS, min(BATCH_ROWS, self.account.left // 4 // longest))


def opened(
    store: Store, paths: Sequence[tuple[str, int | None]], account: Account, parallel: int
) -> Iterator[CheckpointFile]:
    """Files in their order, each to be entered and left before the next. Small ones are read as a
    whole, with one request each, as many together as may be held at once.

    Args:
        paths: with their sizes in bytes, as far as these are known.
        parallel: so many requests are made at once.
    Raises: CorruptLog.
    """
    left = list(paths)
    while left:
        most = min(IN_MEMORY if account.limited else _WITHOUT_A_LIMIT, account.left // 4)
        together: list[tuple[str, int]] = []
        for path, size in left:
            if size is None or sum(known for _, known in together) + size > most:
                break
            together.append((path, size))
        if not together:
            yield CheckpointFile(store, left.pop(0)[0], account)
            continue
        del left[: len(together)]
        reads = [partial(_content, store, path, size) for path, size in together]
        contents = side_by_side(reads, parallel)[::-1]
        for path, _ in together:
            yield CheckpointFile(store, path, account, contents.pop())


def _content(store: Store, path: str, size: int) -> bytes | None:
    """The whole file; None if it has another size. Raises: CorruptLog."""
    try:
        found = store.get_range(path, 0, size + 1)
    except ObjectNotFound as error:
        raise _absent(path) from error
    return found if len(found) == size else None


def measure(values: Any) -> tuple[int, int]:
    """(bytes of all texts once they are not in dictionaries, number of leaves)."""
    type_ = values.type
    if pa.types.is_dictionary(type_):
        sizes = pc.binary_length(values.dictionary).cast(pa.int64())
        return pc.sum(pc.take(sizes, values.indices)).as_py() or 0, len(values)
    if pa.types.is_struct(type_):
        parts = [measure(values.field(index)) for index in range(type_.num_fields)]
    elif pa.types.is_map(type_):
        parts = [measure(_shown(values, values.keys)), measure(_shown(values, values.items))]
    elif pa.types.is_list(type_) or pa.types.is_large_list(type_):
        parts = [measure(_shown(values, values.values))]
    else:
        return values.nbytes, len(values)
    return sum(size for size, _ in parts), sum(leaves for _, leaves in parts)


def _shown(lists: Any, entries: Any) -> Any:
    """The entries of a slice of lists."""
    if not len(lists):
        return entries.slice(0, 0)
    first, last = lists.offsets[0].as_py(), lists.offsets[len(lists)].as_py()
    return entries.slice(first, last - first)


def _plain(type_: pa.DataType) -> pa.DataType:
    """The type without dictionaries."""
    if pa.types.is_dictionary(type_):
        return type_.value_type
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_plain(field.type)) for field in type_])
    if pa.types.is_map(type_):
        key, item = type_.key_field, type_.item_field
        return pa.map_(key.with_type(_plain(key.type)), item.with_type(_plain(item.type)))
    if pa.types.is_list(type_):
        return pa.list_(type_.value_field.with_type(_plain(type_.value_type)))
    return type_


def _decodable(values: Any) -> Any:
    """The values without indices into an empty dictionary: a required text of a struct that is null
    in all rows has them, since only the struct knows of its nulls."""
    type_ = values.type
    if pa.types.is_dictionary(type_) and not len(values.dictionary):
        return pa.nulls(len(values), type_)
    if not pa.types.is_struct(type_):
        return values
    children = [values.field(index) for index in range(type_.num_fields)]
    found = [_decodable(child) for child in children]
    if all(new is old for new, old in zip(found, children, strict=True)):
        return values
    return pa.StructArray.from_arrays(found, fields=list(type_), mask=values.is_null())


def _present(batch: pa.RecordBatch) -> Any:
    values = batch.column(0)
    return values.filter(values.is_valid()) if values.null_count else values


def unreadable(path: str, error: Exception) -> CorruptLog:
    """The error of a checkpoint that its format forbids."""
    return corrupt(path, f"{type(error).__name__}: {error}"[:300], "a whole Parquet or JSON file")


def _absent(path: str) -> CorruptLog:
    return corrupt(path, "no such file", "the file that the log names")


def corrupt(path: str, found: str, expected: str) -> CorruptLog:
    """The error of a checkpoint that cannot be used."""
    return CorruptLog(
        "the checkpoint cannot be read",
        resource=path,
        found=found,
        expected=expected,
        remedy="Delete the checkpoint if all commits before it exist; otherwise restore it from "
        "a backup",
    )
