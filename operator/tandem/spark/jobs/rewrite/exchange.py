"""Spark's shuffle as the exchange of blocks: it moves bytes, and looks at none."""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

import pyarrow as pa

from tandem.spark.runtime.frames import answers, map_in_arrow

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# Blocks of rows, as they travel between tasks, and the file in which a task keeps what it gets.
#
# It must not import Spark.


HELD: Final = 32 << 20
"""Bytes of a task's blocks beyond which they are on disk."""
_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="lz4")
"""Faster than zstd; the rows are on disk for seconds."""


@dataclass(frozen=True, slots=True)
class RowBlock:
    """Some rows of one range of a bin.

    Attributes:
        part: the number of the task that gets it.
        range_: the number of the range within the part.
        first: the place of the first row, by which blocks of a range are in order.
        size: bytes of the rows in memory.
        largest: those of the largest column.
        data: an Arrow IPC stream, compressed, in which columns may have dictionaries.
    """

    part: int
    range_: int = 0
    first: int = 0
    rows: int = 0
    size: int = 0
    largest: int = 0
    data: bytes = b""


class Exchange(Protocol):
    """Runs tasks that send blocks to others."""

    def __call__(
        self,
        senders: int,
        send: Callable[[int], Iterator[RowBlock]],
        parts: int,
        receive: Callable[[Iterator[RowBlock]], Iterator[Any]],
    ) -> list[Any]:
        """Call `send` with each number below `senders`, then `receive` with the blocks of each
        part below `parts`, in any order, or those of several parts at once.

        Returns: what the calls of `receive` yielded, in any order.
        """


def encoded(rows: pa.RecordBatch) -> bytes:
    """The data of a block."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=_OPTIONS) as writer:
        writer.write_batch(rows)
    return bytes(sink.getvalue())


def decoded_rows(data: bytes) -> pa.RecordBatch:
    """The rows of a block's data."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()


def sized(part: int, range_: int, first: int, rows: pa.RecordBatch) -> RowBlock:
    """A block of these rows."""
    sizes = [column.nbytes for column in rows.columns]
    return RowBlock(part, range_, first, rows.num_rows, sum(sizes), max(sizes), encoded(rows))


@dataclass(frozen=True, slots=True)
class KeptBlock:
    """A block whose data are in a file."""

    block: RowBlock
    start: int
    length: int


class BlockFile:
    """A task's blocks: in memory if they are few, otherwise in a file that has no name. Use as a
    context manager."""

    def __init__(self) -> None:
        # Spark's own folders for such files, which may be on a larger disk.
        folders = os.environ.get("SPARK_LOCAL_DIRS", "").split(",")
        folder = folders[0] if os.path.isdir(folders[0]) else None
        self._file = tempfile.SpooledTemporaryFile(HELD, dir=folder)  # noqa: SIM115
        self._end = 0

    def add(self, block: RowBlock) -> KeptBlock:
        kept = KeptBlock(replace(block, data=b""), self._end, len(block.data))
        self._file.seek(self._end)
        self._file.write(block.data)
        self._end += len(block.data)
        return kept

    def rows(self, kept: KeptBlock) -> pa.RecordBatch:
        """Read the rows of a block."""
        self._file.seek(kept.start)
        return decoded_rows(self._file.read(kept.length))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


_SCHEMA: Final = "part int, block binary"


class SparkExchange:
    """An `Exchange`.

    Args:
        session: one of its own; its settings are changed.
    """

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        # A batch of blocks is in memory as a whole.
        session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1")

    def __call__(
        self,
        senders: int,
        send: Callable[[int], Iterator[RowBlock]],
        parts: int,
        receive: Callable[[Iterator[RowBlock]], Iterator[Any]],
    ) -> list[Any]:
        def sent(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in numbers:
                for number in batch.column(0).to_pylist():
                    yield from map(_as_batch, send(number))

        def received(batches: Iterator[pa.RecordBatch]) -> Iterator[Any]:
            return receive(_blocks(batches))

        blocks = map_in_arrow(self._session.range(0, senders, 1, senders), sent, _SCHEMA)
        return answers(blocks.repartitionById(parts, "part"), received)


def _as_batch(block: RowBlock) -> pa.RecordBatch:
    arrays = [pa.array([block.part], pa.int32()), pa.array([pickle.dumps(block)], pa.binary())]
    return pa.RecordBatch.from_arrays(arrays, names=["part", "block"])


def _blocks(batches: Iterator[pa.RecordBatch]) -> Iterator[RowBlock]:
    for batch in batches:
        for block in batch.column(1):
            yield pickle.loads(block.as_py())
