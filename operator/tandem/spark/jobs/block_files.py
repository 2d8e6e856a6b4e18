"""Rows of a source, sorted by key, as files of blocks. It must not import Spark.

A block has one row a key, and no key is NULL. Columns and other NULLs are checked as those of any
new data file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.datafiles.conform import nulls
from tandem.delta.datafiles.writer import WrittenFile
from tandem.delta.partitions import unstorable
from tandem.errors import DuplicateKeys, StatementFailed
from tandem.jobs.formats import UpsertJob
from tandem.jobs.results import JobResult, OutputFile
from tandem.mergelog.rows.by_key import Repeated, UniqueRows, row_text
from tandem.mergelog.state.log_table import DELETED, INSTANT, LogSettings
from tandem.spark.runtime.control import Control, job_table_format, output_file
from tandem.spark.runtime.row_files import RowFiles, RowsWork
from tandem.storage import Store


@dataclass(frozen=True, kw_only=True)
class BlockWork(RowsWork):
    """A write of blocks. `table` is `UpsertJob.blocks`; `field`, `keys`, `ordering_column`,
    `deletes` and `partitions` are the job's."""

    field: str
    keys: tuple[str, ...]
    ordering_column: str = ""
    deletes: bool = False
    partitions: tuple[str, ...] = ()

    @property
    def settings(self) -> LogSettings:
        return LogSettings(self.keys, self.ordering_column)


def block_work(control: Control, job: UpsertJob) -> BlockWork:
    """The write of a job's blocks."""
    return BlockWork(
        table=job.blocks,
        data_prefix=control.spec.data_prefix,
        target_file_size=job.max_block_bytes,
        new_columns=columns_of(job),
        field=job.field,
        keys=job.keys,
        ordering_column=job.ordering_column,
        deletes=job.deletes,
        partitions=job.partitions,
    )


def columns_of(job: UpsertJob) -> tuple[str, ...]:
    """The columns that rows of the source have: all of the base table, or those of a delete."""
    names = job_table_format(job.blocks).schema.names
    wanted = LogSettings(job.keys, job.ordering_column).columns
    own = (DELETED, INSTANT)
    return tuple(n for n in names if n not in own and (not job.deletes or n in wanted))


@dataclass(frozen=True)
class BlocksWritten:
    """The files of a task, the rows that it read, and the keys that occurred more than once."""

    files: tuple[WrittenFile, ...]
    rows: int
    repeated: Repeated


class BlockFiles(RowFiles):
    """Writes rows that come sorted by key, so that equal keys follow each other."""

    are_blocks = True

    def __init__(self, control: Store, work: BlockWork, task: int = 0) -> None:
        super().__init__(control, work, tuple(job_table_format(work.table).schema.names), task)
        self._blocks = work

    def write_blocks(self, batches: Iterable[pa.RecordBatch]) -> BlocksWritten:
        """Write all batches, and close the files; an error leaves no incomplete file.

        Raises: StatementFailed for a key that is NULL, and a row with it; for another NULL, a text
            that is not UTF-8, or a value that a partition column cannot hold.
        """
        # A delete has its key and the value of the ordering column: two that are equal are one.
        unique = UniqueRows(self._blocks.settings, alike=self._blocks.deletes)
        rows = 0

        def parts() -> Iterator[pa.RecordBatch]:
            nonlocal rows
            for batch in batches:
                rows += batch.num_rows
                self._check_keys(batch)
                self._check_partitions(batch)
                yield from self._records(unique.take(pa.Table.from_batches([batch])))
            yield from self._records(unique.finish())

        written = self.write_all(parts())
        return BlocksWritten(written.files, rows, unique.repeated)

    def _check_keys(self, rows: pa.RecordBatch) -> None:
        for name in self._blocks.keys:
            keys = rows.column(name)
            if keys.null_count:
                row = rows.slice(pc.index(keys.is_null(), True).as_py(), 1).drop_columns([name])
                raise StatementFailed(
                    "a key is NULL",
                    resource=self._blocks.field,
                    field=name,
                    found=f"NULL in the row {row_text(row) or 'without other columns'}",
                    expected="a value in every row",
                    remedy="Leave rows without a key out of the source, or give them one: a log "
                    "finds rows by their keys",
                )

    def _check_partitions(self, rows: pa.RecordBatch) -> None:
        for name in self._blocks.partitions:
            wrong = unstorable(rows.column(name)) if name in rows.schema.names else None
            if wrong is not None:
                raise StatementFailed(
                    "a partition column cannot hold a value",
                    field=name,
                    found=wrong.found,
                    expected=wrong.expected,
                    remedy="Correct the source, or leave such rows out",
                )

    def _records(self, rows: pa.Table | None) -> list[pa.RecordBatch]:
        """Rows in the columns of blocks."""
        if rows is None or not rows.num_rows:
            return []
        own = {
            DELETED: pa.repeat(pa.scalar(self._blocks.deletes), rows.num_rows),
            INSTANT: pa.nulls(rows.num_rows, pa.int64()),
        }
        arrays = [
            own[field.name]
            if field.name in own
            else rows[field.name].combine_chunks()
            if field.name in rows.column_names
            else nulls(rows.num_rows, field.type)
            for field in self._table.schema
        ]
        return [pa.RecordBatch.from_arrays(arrays, names=self._table.schema.names)]


def publish(
    control: Control, files: Sequence[OutputFile], rows_read: int, repeated: Repeated
) -> None:
    """Publish the result of a job. Raises: DuplicateKeys."""
    job = control.spec.job
    assert isinstance(job, UpsertJob)
    if repeated.keys:
        ordered = bool(job.ordering_column)
        raise DuplicateKeys(
            f"the source has several rows of a key, and the greatest {job.ordering_column} in "
            "more than one of them"
            if ordered
            else "the source has several rows of a key, and nothing says which of them wins",
            resource=job.source_location,
            field=job.field,
            found=f"{repeated.keys} keys: {'; '.join(repeated.examples)}",
            expected=f"one greatest {job.ordering_column} a key" if ordered else "one row a key",
            remedy="Remove the repeated rows from the source",
        )
    outputs = tuple(
        file.model_copy(update={"deletes": file.rows}) if job.deletes else file for file in files
    )
    control.publish(
        JobResult(
            operation_id=control.spec.operation_id,
            attempt=control.spec.attempt,
            outputs=outputs,
            rows_read=rows_read,
            rows_written=sum(file.rows for file in outputs),
        )
    )


def outputs_of(written: BlocksWritten) -> tuple[OutputFile, ...]:
    return tuple(map(output_file, written.files))
