"""The live rows of a bin's inputs, decoded ahead of the writer.

It must not import Spark.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from queue import Queue

import pyarrow as pa

from tandem.delta.datafiles.reader import DataFileReader, TableFormat, read_whole
from tandem.delta.datafiles.rowgroups.schema import GROUP_BYTES, GROUP_ROWS
from tandem.delta.datafiles.writer import ParquetDataWriter, encoding_like
from tandem.delta.protocol import asks_for_deletion_vectors
from tandem.errors import CountMismatch
from tandem.jobs.formats import InputFile
from tandem.spark.runtime.counters import Counter
from tandem.spark.runtime.frames import dead_rows
from tandem.storage import Store
from tandem.storage.paths import object_path

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
