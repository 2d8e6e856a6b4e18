"""A bin of which row groups are copied as bytes: what fits is copied, the rest is encoded.

Inputs between two that are copied are encoded into a file on the task's disk, whose row groups are
copied in turn: so the rows keep their order, and one output may hold both. Deleted rows of a file
that is copied stay in the output: the row map has no dead rows for it, so that the commit moves the
file's deletion vector. It must not import Spark.
"""

from __future__ import annotations

import tempfile
import threading
from collections import Counter as Tally
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby, islice
from queue import Queue
from typing import Self

import pyarrow as pa

from tandem.delta.datafiles.conform import missing
from tandem.delta.datafiles.copyable import (
    GROUP_BYTES,
    GROUP_ROWS,
    Demands,
    Unfit,
    is_small,
    key_of,
    unfit,
)
from tandem.delta.datafiles.footer import FileFooter, FooterInvalid, parse, read_footer
from tandem.delta.datafiles.joined_files import (
    ChunkSource,
    CopySource,
    FloatColumns,
    JoinedFile,
    copying,
)
from tandem.delta.datafiles.reader import DataFileReader, RowOrigin, TableFormat, read_whole
from tandem.delta.datafiles.row_ids import MOST_ROWS, RowIdColumns, with_row_ids, without_row_ids
from tandem.delta.datafiles.writer import Describe, ParquetDataWriter, WrittenFile, encoding_like
from tandem.delta.protocol import asks_for_deletion_vectors
from tandem.errors import CountMismatch, ObjectNotFound
from tandem.jobs.formats import InputFile, JobBin
from tandem.spark.runtime.control import Counter, origin_of
from tandem.spark.runtime.frames import dead_rows
from tandem.storage import Store, open_store
from tandem.storage.paths import object_path

# The live rows of a bin's inputs, decoded ahead of the writer. Every kind of bin reads them so.


AHEAD = 4
"""So many times decoded batches wait for the writer, at most."""
HANDED_ROWS = 16_384
HANDED_BYTES = 1 << 20
"""Rows and Arrow bytes from which on batches are handed to the writer."""
SMALL_BYTES = 1 << 20
"""Files of fewer bytes are read in one request each."""
REQUESTS = 16
"""Requests for them at once, and so many of them in memory."""

NumberedBatch = tuple[int, pa.RecordBatch]
"""Rows of an input, with its number."""


def encoding_of(store: Store, inputs: Sequence[InputFile], table: TableFormat) -> list[str] | None:
    """Encode like the largest input; under column mapping let the encoder decide, since an old
    file may have other column names."""
    if not inputs or table.mapping != "none":
        return None
    largest = max(inputs, key=lambda i: i.size)
    with DataFileReader(store, decoded(largest), table, columns=()) as reader:
        return encoding_like(reader.metadata, table)


def decoded(input_: InputFile) -> str:
    return object_path(input_.logged_path)


def live_batches(
    store: Store,
    inputs: Sequence[InputFile],
    table: TableFormat,
    counter: Counter | None = None,
    positions: str | None = None,
) -> Iterator[NumberedBatch]:
    """(number of the input, rows of it), in order. `counter` counts the inputs that were read."""
    columns = table.data_schema.names
    before: DataFileReader | None = None
    for slot, (input_, data) in enumerate(zip(inputs, _contents(store, inputs), strict=True)):
        with DataFileReader(
            store,
            decoded(input_),
            table,
            columns=columns,
            dictionaries=True,
            origin=origin_of(input_, table),
            data=data,
            like=before,
        ) as reader:
            before = reader
            require_rows(input_, reader.num_rows)
            for batch in reader.batches(dead=dead_rows(input_), positions=positions):
                yield slot, batch
        if counter is not None:
            counter.add()
    if counter is not None:
        counter.show()


def write_in_order(
    writer: ParquetDataWriter, batches: Iterable[NumberedBatch], table: TableFormat
) -> int:
    """Write rows of inputs in order; returns their number. Without deletion vectors, row groups end
    where an input ends, if they are large enough: an input that other writers replace meanwhile
    costs an edit of the output one row group."""
    edits_follow = not asks_for_deletion_vectors(table.configuration)
    rows = last = 0
    for slot, batch in batches:
        if edits_follow and slot != last:
            writer.end_group(GROUP_ROWS, GROUP_BYTES)
        last = slot
        rows += batch.num_rows
        writer.write(batch)
    return rows


def _contents(store: Store, inputs: Sequence[InputFile]) -> Iterator[bytes | None]:
    """The content of each input if it is small. Those of an object store are requested ahead: one
    after the other, they would take most of the time."""

    def content(input_: InputFile) -> bytes | None:
        if not 0 < input_.size < SMALL_BYTES:
            return None
        return read_whole(store, decoded(input_), input_.size)

    if store.location.startswith("file:"):
        yield from map(content, inputs)
        return
    pool = ThreadPoolExecutor(REQUESTS, "tandem-fetch")
    try:
        left = iter(inputs)
        coming = deque(pool.submit(content, each) for each in islice(left, REQUESTS))
        while coming:
            data = coming.popleft().result()
            coming.extend(pool.submit(content, each) for each in islice(left, 1))
            yield data
    finally:
        pool.shutdown(cancel_futures=True)


def ahead(batches: Iterator[NumberedBatch]) -> Iterator[NumberedBatch]:
    """The same batches, decoded by another thread while the caller processes the previous ones.
    Small ones are handed over together: each time costs as much as decoding a hundred rows."""
    queue: Queue[list[NumberedBatch] | BaseException | None] = Queue(AHEAD)
    stop = threading.Event()

    def produce() -> None:
        try:
            for together in _handed_over(batches):
                queue.put(together)
                if stop.is_set():
                    break
            queue.put(None)
        except BaseException as error:  # noqa: BLE001 - handed to the consumer, raised there
            queue.put(error)

    thread = threading.Thread(target=produce, name="tandem-decode", daemon=True)
    thread.start()
    try:
        while (item := queue.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield from item
    finally:
        stop.set()
        while thread.is_alive():
            # Free a slot in case the producer waits for one.
            if not queue.empty():
                queue.get_nowait()
            thread.join(0.01)


def _handed_over(batches: Iterator[NumberedBatch]) -> Iterator[list[NumberedBatch]]:
    together: list[NumberedBatch] = []
    rows = size = 0
    for batch in batches:
        together.append(batch)
        rows, size = rows + batch[1].num_rows, size + batch[1].nbytes
        if rows >= HANDED_ROWS or size >= HANDED_BYTES:
            yield together
            together, rows, size = [], 0, 0
    if together:
        yield together


def require_rows(input_: InputFile, found: int) -> None:
    """Raises: CountMismatch if a file has another number of rows than the log says."""
    if found != input_.rows:
        raise CountMismatch(
            "the number of rows in a data file differs from the log",
            resource=decoded(input_),
            found=found,
            expected=str(input_.rows),
            remedy="Restore the file, or the table to a version without it",
        )


# A bin of which row groups are copied.


@dataclass(frozen=True, slots=True)
class CopyChoice:
    """What is copied of a bin: the footer of each input that is, and why each other is not."""

    inputs: tuple[FileFooter | Unfit, ...]
    versions: tuple[str | None, ...]
    """Of the objects of which these are the footers, as far as the store names versions."""

    @property
    def copied(self) -> frozenset[int]:
        """The numbers of the inputs that are copied."""
        return frozenset(n for n, each in enumerate(self.inputs) if isinstance(each, FileFooter))


def choose(
    store: Store, inputs: Sequence[InputFile], table: TableFormat, group_rows: int | None = None
) -> CopyChoice | None:
    """What to copy of a bin; None if nothing can be.

    Args:
        group_rows: `minRowGroupRows`; None for the default.
    Raises: DataFileMissing, StorageError; CountMismatch if a file that can be copied has another
        number of rows than planned; UnsupportedFeature for the table's codec.
    """
    if all(is_small(each.rows, each.size, group_rows) for each in inputs):
        return None  # as the log says; no footer need be read
    demands = Demands.of(table.without_row_ids, group_rows)
    keeps_deleted = asks_for_deletion_vectors(table.configuration)
    judged = [
        _judge(store, each, demands, table.row_ids, keeps_deleted=keeps_deleted) for each in inputs
    ]
    found = [each for each, _ in judged]
    keys = [
        key_of(without_row_ids(each, table.row_ids)) if isinstance(each, FileFooter) else None
        for each in found
    ]
    sizes: Tally[object] = Tally()
    for each, of in zip(found, keys, strict=True):
        if isinstance(each, FileFooter):
            sizes[of] += each.size
    if not sizes:
        return None
    ours = key_of(demands.ours)
    # What is encoded has our schema, and must be able to share a file with what is copied.
    mixed = len(sizes) > 1 or any(isinstance(each, Unfit) for each in found)
    key = ours if mixed else next(iter(sizes))
    if key not in sizes:
        return None
    return CopyChoice(
        tuple(
            Unfit.COLUMNS if of not in (None, key) else each
            for each, of in zip(found, keys, strict=True)
        ),
        tuple(version for _, version in judged),
    )


def _judge(
    store: Store,
    input_: InputFile,
    demands: Demands,
    row_ids: Sequence[str],
    *,
    keeps_deleted: bool,
) -> tuple[FileFooter | Unfit, str | None]:
    """The footer or why it is not copied, and the version of the file."""
    if is_small(input_.rows, input_.size, demands.group_rows):
        return Unfit.SMALL, None
    deleted = len(dead_rows(input_))
    if deleted and not keeps_deleted:
        return Unfit.DELETED, None
    source = CopySource.read(store, decoded(input_))
    if source.footer is None:
        return Unfit.FOOTER, None
    require_rows(input_, source.footer.rows)
    try:
        own = without_row_ids(source.footer, row_ids)
    except FooterInvalid:
        return Unfit.FOOTER, None
    if own is not source.footer and any(group.rows > MOST_ROWS for group in own.groups):
        return Unfit.FOOTER, None
    return unfit(own, demands, deleted=deleted) or source.footer, source.version


@dataclass
class BinFiles:
    """Writes the files of a bin. Use as a context manager: an exception discards the open one.

    Args:
        prefix: folder of the files, below the table's root.
        target: bytes at which a file is closed, 0 for never.
    """

    store: Store
    prefix: str
    table: TableFormat
    bin: JobBin
    task: int
    target: int
    describe: Describe
    counter: Counter
    files: list[WrittenFile] = field(default_factory=list)
    rows: int = 0
    copied_in_store: int = 0
    """Bytes that never left the store."""
    _open: JoinedFile | None = None

    def write(self, inputs: Sequence[InputFile], chosen: CopyChoice) -> None:
        """Copy or encode the inputs, in order. Raises: DataFileMissing, StorageError,
        CountMismatch, UnsupportedFeature."""
        try:
            self._write(inputs, chosen)
        except ObjectNotFound as error:
            # Of any input: a store copies them while others are appended.
            raise missing(error.resource.removeprefix(f"{self.store.location}/")) from error

    def _write(self, inputs: Sequence[InputFile], chosen: CopyChoice) -> None:
        numbered = zip(inputs, chosen.inputs, chosen.versions, strict=True)
        for is_copied, run in groupby(numbered, lambda each: isinstance(each[1], FileFooter)):
            if is_copied:
                for input_, footer, version in run:
                    assert isinstance(footer, FileFooter)
                    origin = origin_of(input_, self.table)
                    self._copy(self.store, decoded(input_), footer, version, origin)
                    self.counter.add()
            else:
                self._encode([input_ for input_, _, _ in run])
        self.counter.show()
        self._finish()

    def _encode(self, inputs: Sequence[InputFile]) -> None:
        with tempfile.TemporaryDirectory(prefix="tandem-encoded-") as folder:
            disk = open_store(f"file://{folder}")
            writer = ParquetDataWriter(
                disk,
                "",
                self.table,
                partition_values=self.bin.partition_values,
                partition_folders=False,
                dictionary=encoding_of(self.store, inputs, self.table),
            )
            with writer:
                batches = live_batches(self.store, inputs, self.table, self.counter)
                write_in_order(writer, ahead(batches), self.table)
            for file in writer.files:
                with disk.open_input(file.path) as source:
                    footer = parse(read_footer(source), file.size)
                self._copy(disk, file.path, footer)

    def _copy(
        self,
        store: Store,
        path: str,
        footer: FileFooter,
        version: str | None = None,
        origin: RowOrigin | None = None,
    ) -> None:
        """`origin`: that of rows whose ids may not be in the file."""
        own = footer
        with (
            copying(path, self.table),
            CopySource(store, path, footer, version).open() as source,
            FloatColumns(store, path, self.table) as floats,
            ExitStack() as opened,
        ):
            ids = None
            if origin is not None:
                own = without_row_ids(footer, self.table.row_ids)
                in_file = (source, footer) if own is not footer else None
                found = RowIdColumns(store, path, self.table, origin, in_file=in_file)
                ids = opened.enter_context(found)
            position = 0
            for number, group in enumerate(own.groups):
                start, position = position, position + group.rows
                if not group.rows:
                    continue
                if self._open is None:
                    values = self.bin.partition_values
                    like = own if ids is None else with_row_ids(own, self.table)
                    self._open = JoinedFile(
                        self.store, self.prefix, self.table, like, self.task, values
                    )
                summaries = floats.summaries(number)
                if ids is None:
                    self._open.copy(source, own, group, summaries)
                else:
                    columns = ChunkSource(source, own, dict(enumerate(group.chunks)), summaries)
                    parts = ids.of(number, group, start, self.table.row_ids)
                    self._open.assemble(group.rows, [columns, *parts])
                if self._open.is_full or 0 < self.target <= self._open.size:
                    self._finish()

    def _finish(self) -> None:
        if self._open is not None:
            joined, self._open = self._open, None
            file = joined.close(self.describe)
            self.files.append(file)
            self.rows += file.rows
            self.copied_in_store += joined.copied_in_store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._open is not None:
            self._open.abort()
            self._open = None
