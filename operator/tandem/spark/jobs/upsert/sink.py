"""The data source that Spark's tasks write blocks to; each task has a range of the keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, WriterCommitMessage

from tandem.jobs.formats import Format
from tandem.jobs.results import OutputFile
from tandem.mergelog.rows.by_key import Repeated
from tandem.spark.jobs.upsert.block_files import BlockFiles, BlocksWritten, BlockWork, outputs_of
from tandem.spark.runtime.datasource import get_work, task_number
from tandem.storage import Store

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

NAME = "tandem-blocks"


class BlockWriteResult(Format):
    """The result of a committed write. `repeated` counts the keys that occurred more than once,
    `examples` are some of them."""

    outputs: tuple[OutputFile, ...] = ()
    rows: int = 0
    repeated: int = 0
    examples: tuple[str, ...] = ()


class BlockSink(DataSource):
    """`df.write.format("tandem-blocks")`; options: see `put_work`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002
        store, data = get_work(self.options)
        return BlockWriter(store, BlockWork.model_validate_json(data))


@dataclass
class BlockTaskOutput(WriterCommitMessage):
    """The output of one task."""

    written: BlocksWritten


class _TaskFiles(BlockFiles):
    def _task(self) -> int:
        return task_number()


class BlockWriter(DataSourceArrowWriter):
    def __init__(self, control: Store, work: BlockWork) -> None:
        super().__init__()
        self._control = control
        self._work = work

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return BlockTaskOutput(_TaskFiles(self._control, self._work).write_blocks(iterator))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """`messages` has, of all attempts at each task, only the one that Spark accepted."""
        written = [m.written for m in messages if isinstance(m, BlockTaskOutput)]
        repeated = Repeated()
        for each in written:
            repeated.add(each.repeated)
        answer = BlockWriteResult(
            outputs=tuple(output for each in written for output in outputs_of(each)),
            rows=sum(each.rows for each in written),
            repeated=repeated.keys,
            examples=tuple(repeated.examples),
        )
        self._control.put(self._work.answer_path, answer.model_dump_json(by_alias=True).encode())

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing refers to the files written; the engine cleans the attempt's folder."""
