"""Appends to the log from Spark: tasks write blocks, the driver commits them as one batch of a log
writer.

Spark repeats a batch after a failure, under the same number; it counts once. What a task or a batch
that failed has written stays: its commit may have been made although the answer was lost. Cleaning
deletes what no version names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.pandas.types import to_arrow_schema

from tandem.errors import InvalidSpec
from tandem.mergelog.view import open_log
from tandem.mergelog.writer import LogWriter, Upload, Uploaded
from tandem.spark.connector.options import WriteOptions

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

BLOCK_BYTES: Final = 256 << 20
"""Arrow bytes of rows that a task holds before it writes them as blocks."""
QUERY_ID: Final = "sql.streaming.queryId"
"""The local property of a task that identifies its stream: it comes with the checkpoint."""


@dataclass(frozen=True)
class TaskBlocks(WriterCommitMessage):
    """What a task wrote; `query` identifies the stream."""

    parts: tuple[Uploaded, ...]
    query: str


class AppendWriter:
    """Writes the rows of a task as blocks. Picklable."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        """Raises: InvalidSpec, if the log cannot take such rows; NotMergeOnRead."""
        self._options = options
        self._upload = Upload.begin(open_log(options.location, dict(options.storage)))
        self._check_marker()
        empty = to_arrow_schema(schema, timezone="UTC").empty_table()
        self._upload.arrange(*self._divided(empty))

    def _check_marker(self) -> None:
        name = self._options.deletes
        if name and name in self._upload.base.schema.names:
            raise self._wrong_marker(f"{name}, a column of the table", "another column")

    def _divided(self, rows: pa.Table) -> tuple[pa.Table, pa.Table | None]:
        """Upserts and deletes."""
        name = self._options.deletes
        if not name:
            return rows, None
        if name not in rows.column_names or not pa.types.is_boolean(rows[name].type):
            found = str(rows[name].type) if name in rows.column_names else "no such column"
            raise self._wrong_marker(f"{name}: {found}", "a boolean column of the rows")
        marks = rows[name]
        if marks.null_count:
            raise self._wrong_marker("NULL", "true or false in every row")
        others = rows.drop_columns([name])
        deleted = others.filter(marks).select(list(self._upload.settings.columns))
        return others.filter(pc.invert(marks)), deleted

    def _wrong_marker(self, found: str, expected: str) -> InvalidSpec:
        return InvalidSpec(
            "the marker of deletes is invalid",
            resource=self._options.location,
            field="deletes",
            found=found,
            expected=expected,
            remedy="Correct the option `deletes`, or the rows",
        )

    def write_all(self, batches: Iterator[pa.RecordBatch]) -> TaskBlocks:
        """The blocks of a task. Raises: InvalidSpec, DuplicateKeys, StorageError."""
        store = open_log(self._options.location, dict(self._options.storage)).store
        parts: list[Uploaded] = []
        held: list[pa.RecordBatch] = []

        def write() -> None:
            parts.append(self._upload.write(store, *self._divided(pa.Table.from_batches(held))))
            held.clear()

        size = 0
        for batch in batches:
            held.append(batch)
            size += batch.nbytes
            if size >= BLOCK_BYTES:
                write()
                size = 0
        if held:
            write()
        return TaskBlocks(tuple(part for part in parts if part.adds), _query())

    def commit_all(self, messages: Sequence[WriterCommitMessage | None], batch: int) -> None:
        """Commit what the tasks wrote; a batch without rows leaves no trace. Raises: as
        `LogWriter.append_uploaded`."""
        found = [message for message in messages if isinstance(message, TaskBlocks)]
        parts = [part for message in found for part in message.parts]
        if not parts:
            return
        name = self._options.writer or found[0].query
        log = open_log(self._options.location, dict(self._options.storage))
        with LogWriter(log, name) as writer:
            writer.append_uploaded(parts, batch=batch)


def _query() -> str:
    from pyspark import TaskContext

    context = TaskContext.get()
    return (context.getLocalProperty(QUERY_ID) or "") if context is not None else ""


class StreamWriter(AppendWriter, DataSourceStreamArrowWriter):
    """A micro-batch of a stream is one batch, under its number."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.write_all(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        self.commit_all(messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """Deletes nothing: the commit may have been made."""


class BatchWriter(AppendWriter, DataSourceArrowWriter):
    """A write is one batch, under the number that the option `batch` gives."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self.write_all(iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        assert self._options.batch is not None
        self.commit_all(messages, self._options.batch)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Deletes nothing: the commit may have been made."""
