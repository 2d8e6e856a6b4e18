"""A bin of which the rows are reordered in memory: the work of a task.

Its rows are decoded, ordered by integers (`sort_codes`), and encoded part by part. They never
become Spark's rows, which takes ten times as long. A bin that needs more memory than a task has is
left to `large_bins`; so is one that turns out to need more while it is decoded. It must not import
Spark.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.clustering import path_of
from tandem.delta.datafiles.reader import TableFormat
from tandem.delta.datafiles.writer import ParquetDataWriter, WrittenFile, repetitive_columns
from tandem.errors import CountMismatch
from tandem.jobs.formats import InputFile, JobLayout, JobSpec, RewriteJob
from tandem.spark.jobs.bins import MEMORY, BinResult, BinTooLarge
from tandem.spark.jobs.copied_bins import live_batches
from tandem.spark.jobs.sort_codes import Rows, codes_of, in_order, one_array, z_codes
from tandem.spark.runtime.control import Counter, Counters, job_table_format
from tandem.spark.runtime.frames import dead_rows
from tandem.spark.runtime.written_facts import FileDescriber
from tandem.storage import Store

WRITING: Final = 192 << 20
"""Bytes beside the rows while they are written: two row groups, and what is encoded of a third."""
ORDER_BYTES: Final = 32
"""Bytes beside each row while its place is found, and `KEY_BYTES` for each column of the order."""
KEY_BYTES: Final = 8
ROOM: Final = 2
"""A part's file is cut at this many times the target size: normally a part is one file, but its
size is an estimate."""
_TELLING: Final = 16
"""The share of the memory (one of so many) after which rows tell how large the others are."""
_BATCH_BYTES: Final = 16 << 20
"""Decoded bytes of the rows that are brought into order at once."""
_MOST_VALUES: Final = 4096
"""A larger dictionary is not kept: the encoder writes it into each row group whole, although few
of its values may be there."""


def parts_of(job: RewriteJob, number: int) -> int:
    """How many files a bin becomes: the number that planning expects (`planning.plans`)."""
    if not job.target_file_size:
        return 1
    inputs = [job.inputs[n] for n in job.bins[number].inputs]
    size = sum(i.size * live_rows(i) // max(i.rows, 1) for i in inputs)
    rows = sum(map(live_rows, inputs))
    return max(1, min(round(size / job.target_file_size), max(rows, 1)))


def live_rows(input_: InputFile) -> int:
    """How many rows of an input are not deleted."""
    return input_.rows - len(dead_rows(input_))


def effective(layout: JobLayout) -> JobLayout:
    """A single column is in the order of its quantiles if it is in its own order."""
    columns = layout.columns
    if layout.strategy == "Clustering" and len(columns) == len(path_of(columns[0])) == 1:
        columns = path_of(columns[0])
    elif len(columns) > 1 or layout.strategy == "Clustering":
        return layout
    return JobLayout(strategy="Sort", columns=columns)


def key_paths(layout: JobLayout) -> tuple[tuple[str, ...], ...]:
    """The columns of an order, each as names of fields from outside to inside."""
    if layout.strategy == "Clustering":
        return tuple(map(path_of, layout.columns))
    return tuple((name,) for name in layout.columns)


def key_of(column: Any, path: Sequence[str]) -> Any:
    """The values of a column of an order, from those of the outermost field; in a null struct they
    are null."""
    for name in path[1:]:
        # By position: Arrow takes a name that begins with a dot for a path.
        column = pc.struct_field(column, [column.type.get_field_index(name)])
    return column


def sort_bin(
    store: Store,
    spec: JobSpec,
    index: int,
    memory: int = MEMORY,
    counters: Counters | None = None,
) -> BinResult | BinTooLarge:
    """Rewrite one bin in the order of the job's layout.

    Args:
        memory: bytes that it may take, at most `MEMORY`.
    Raises:
        DataFileMissing, StorageError: an input does not exist or cannot be read.
        CountMismatch: an input has another number of rows than planned.
    """
    job = spec.job
    assert isinstance(job, RewriteJob)
    assert job.layout is not None
    layout = effective(job.layout)
    inputs = [job.inputs[n] for n in job.bins[index].inputs]
    table = job_table_format(spec.table)
    # Spark limits native threads per task; a lone bin would leave the other cores idle.
    pa.set_cpu_count(os.cpu_count() or 1)
    expected = sum(map(live_rows, inputs))
    aside = max(expected * (ORDER_BYTES + KEY_BYTES * len(layout.columns)), WRITING)
    # Rows take no less memory than they take in their files.
    if sum(i.size * live_rows(i) // max(i.rows, 1) for i in inputs) + aside > memory:
        return BinTooLarge(index)
    batches = _decoded(store, inputs, table, aside, memory)
    if batches is None:
        return BinTooLarge(index)
    rows = sum(batch.num_rows for batch in batches)
    files: tuple[WrittenFile, ...] = ()
    order = np.empty(0, dtype=np.uint32)
    if rows:
        columns = whole_columns(batches, table.data_schema.names)
        order = _order(columns, layout, rows)
        counter = Counter(counters, index)
        files = _Parts(store, spec, index, table, counter).write(columns, order)
    written = sum(file.rows for file in files)
    if not rows == written == expected:
        raise CountMismatch(
            "a rewrite would not have kept every row",
            resource=f"bin {index}",
            found=f"{rows} rows read, {written} written",
            expected=f"{expected} live rows by the plan",
        )
    ranks = np.empty(rows, dtype=np.uint32)
    ranks[order] = np.arange(rows, dtype=np.uint32)
    return BinResult(index, files, rows, ranks=ranks)


def _decoded(
    store: Store, inputs: Sequence[InputFile], table: TableFormat, aside: int, memory: int
) -> list[pa.RecordBatch] | None:
    """All live rows, in order; None once it is clear that they take more than `memory`, with
    `aside` bytes beside them. Then a few of them tell how large the others are."""
    expected = sum(map(live_rows, inputs))
    found = []
    rows = 0
    sizes = np.zeros(len(table.data_schema.names), dtype=np.int64)
    for _, batch in live_batches(store, inputs, table):
        found.append(batch)
        rows += batch.num_rows
        sizes += [column.nbytes for column in batch.columns]
        tells = int(sizes.sum()) > memory // _TELLING
        scaled = sizes * max(expected / rows, 1) if tells else sizes
        # The largest column is there twice while it becomes one array.
        if scaled.sum() + max(scaled.max(), aside) > memory:
            return None
    release_unused()
    return found


def whole_columns(batches: list[pa.RecordBatch], names: Sequence[str]) -> dict[str, Any]:
    """The columns, each one array. Takes the batches, so that one column is there twice at most."""
    chunks = {
        name: [batch.column(number) for batch in batches] for number, name in enumerate(names)
    }
    batches.clear()
    columns = {}
    for name in names:
        columns[name] = one_array(chunks.pop(name))
        release_unused()
    return columns


def release_unused() -> None:
    """Give back what Arrow has freed: decoding leaves half as much as there is."""
    pa.default_memory_pool().release_unused()


def _order(columns: dict[str, Any], layout: JobLayout, rows: int) -> Rows:
    keys = [codes_of(key_of(columns[path[0]], path)) for path in key_paths(layout)]
    if layout.strategy == "Sort":
        return in_order(keys, rows)
    return in_order([z_codes(keys, hilbert=layout.strategy == "Clustering")], rows)


@dataclass
class _Parts:
    """Writes the parts of a bin, one after the other."""

    store: Store
    spec: JobSpec
    index: int
    table: TableFormat
    counter: Counter
    _counted: int = 0

    def write(self, columns: dict[str, Any], order: Rows) -> tuple[WrittenFile, ...]:
        job = self.spec.job
        assert isinstance(job, RewriteJob)
        rows, parts = len(order), parts_of(job, self.index)
        inputs = len(job.bins[self.index].inputs)
        files: list[WrittenFile] = []
        done = 0
        for part in range(parts):
            batches = in_batches(columns, order[rows * part // parts : rows * (part + 1) // parts])
            first = next(batches)
            with part_writer(self.store, self.spec, self.index, self.table, first) as writer:
                for batch in chain((first,), batches):
                    writer.write(batch)
                    done += batch.num_rows
                    self._count(inputs * done // rows)
            files += writer.files
        self.counter.show()
        return tuple(files)

    def _count(self, inputs: int) -> None:
        """Inputs count by the share of the rows that are written."""
        for _ in range(self._counted, inputs):
            self.counter.add()
        self._counted = inputs


def part_writer(
    store: Store, spec: JobSpec, index: int, table: TableFormat, first: pa.RecordBatch
) -> ParquetDataWriter:
    """The writer of a part of a bin, of which these are the first rows."""
    job = spec.job
    assert isinstance(job, RewriteJob)
    return ParquetDataWriter(
        store,
        spec.data_prefix,
        table,
        partition_values=job.bins[index].partition_values,
        target_size=ROOM * job.target_file_size,
        task=index,
        # Not as the inputs are encoded: a column may have had equal values side by side there.
        dictionary=repetitive_columns(table, pa.Table.from_batches([plain(first)])),
        codec=job.codec,
        codec_level=job.codec_level,
        describe=FileDescriber(store, spec.table.table_id),
    )


def in_batches(columns: dict[str, Any], order: Rows) -> Iterator[pa.RecordBatch]:
    """Rows in this order, brought into it a few at a time."""
    rows = max(len(next(iter(columns.values()))), 1)
    row_bytes = sum(column.nbytes for column in columns.values()) // rows + 1
    step = max(1, _BATCH_BYTES // row_bytes)
    for start in range(0, len(order), step):
        yield _taken(columns, pa.array(order[start : start + step]))


def _taken(columns: dict[str, Any], places: Any) -> pa.RecordBatch:
    found = [column.take(places) for column in columns.values()]
    arrays = [
        each.dictionary_decode()
        if pa.types.is_dictionary(each.type) and len(each.dictionary) > _MOST_VALUES
        else each
        for each in found
    ]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def plain(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Without dictionaries."""
    arrays = [
        each.dictionary_decode() if pa.types.is_dictionary(each.type) else each
        for each in rows.columns
    ]
    return pa.RecordBatch.from_arrays(arrays, names=rows.schema.names)
