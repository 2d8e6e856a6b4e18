"""The rewrite job for bins whose rows are reordered, and take more memory than a task has.

All such bins are sorted by one Spark job. A sample of the keys, read first, determines where to cut
each bin into parts of about the target size (`ordering`); every row is read with the number of its
part, shuffled to it and sorted there, and each part becomes a file. Rows carry their file and
position, from which the row map is built.

Ties are broken by a row's original position, so that two drivers write the same rows to the same
files, and rows of one key keep their order: this keeps row maps small.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tandem.delta.schema import to_arrow_field
from tandem.errors import CountMismatch
from tandem.jobs.formats import JobLayout, RewriteJob
from tandem.jobs.results import OutputFile, SidecarRef
from tandem.rowmap.permutation import starts
from tandem.rowmap.rowmap import MapOutput, RowMap, RowMapBuilder, RowMapIdentity
from tandem.spark.jobs.rewrite.ordering import Integers, bits_of, cuts, quantiles, z_values
from tandem.spark.jobs.rewrite.sorted_bins import effective, live_rows, parts_of
from tandem.spark.jobs.rewrite.sorted_rows import BIN, NAME, PART, SortedRowsSource, SortedWork, Z
from tandem.spark.runtime.control import Control
from tandem.spark.runtime.counters import prefix_of
from tandem.spark.runtime.datasource import WriteResult, put_work
from tandem.spark.runtime.frames import (
    dead_rows,
    isolated_session,
    reported_shares,
    save_rows,
    table_schema,
)
from tandem.spark.runtime.ipc import to_file
from tandem.spark.runtime.names import quoted_identifier
from tandem.spark.runtime.row_files import INPUT, POSITION

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import DataFrame, SparkSession

SAMPLE_ROWS = 20_000
"""Rows sampled per bin to number values."""
SAMPLE_PER_PART = 200
"""Rows sampled per part to cut a bin: sizes of parts then differ by about a tenth."""
MOST_SAMPLED = 4_000_000
"""The most rows sampled in all bins together: the driver holds them in memory."""


_COUNTERS = 1
"""The round of its counters: beside those of bins that were sorted in tasks, whose numbers mean
other files."""
_NONE = np.empty(0, dtype=np.int64)
_NOTHING = (_NONE, _NONE, _NONE, _NONE)


Sorted = tuple[tuple[OutputFile, ...], RowMap, int, int]
"""Outputs with the run of their bin, the map of all rows, rows read, and rows written."""


def run_sorted(
    control: Control, context: SparkContext, job: RewriteJob, layout: JobLayout
) -> Sorted:
    """Sort all bins of a job. Raises: TandemError."""
    from pyspark.sql import SparkSession

    with isolated_session(SparkSession(context)) as spark:
        spark.dataSource.register(SortedRowsSource)
        return _Sorting(control, spark, job, layout).run()


class _Sorting:
    def __init__(
        self, control: Control, spark: SparkSession, job: RewriteJob, layout: JobLayout
    ) -> None:
        self._control = control
        self._spark = spark
        self._job = job
        self._layout = effective(layout)
        self._live = [sum(live_rows(job.inputs[n]) for n in bin_.inputs) for bin_ in job.bins]
        self._parts = [parts_of(job, number) for number in range(len(job.bins))]

    @property
    def _z(self) -> bool:
        return self._layout.strategy == "ZOrder"

    def run(self) -> Sorted:
        if not sum(self._live):
            return (), self._row_map((), _NOTHING), 0, 0
        from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

        work = self._bounded(self._work())
        keys = [Z] if self._z else [quoted_identifier(name) for name in self._layout.columns]
        rows = (
            self._read(work, (PART, Z) if self._z else (PART,))
            .repartitionById(sum(self._parts), F.col(PART))
            .sortWithinPartitions(*(F.col(n).asc_nulls_last() for n in (*keys, INPUT, POSITION)))
            .drop(PART, Z)
        )
        with reported_shares(self._control, "Sorting", work.inputs, _COUNTERS):
            answer = save_rows(self._control, rows, NAME, work, WriteResult)
        moved = pa.ipc.open_file(self._control.store.get(answer.matches)).read_all()
        if not answer.rows == moved.num_rows == sum(self._live):
            raise CountMismatch(
                "a rewrite would not have kept every row",
                resource=work.data_prefix,
                found=f"{answer.rows} rows written, {moved.num_rows} with a position",
                expected=f"{sum(self._live)} live rows by the plan",
            )
        columns = [moved[name].to_numpy().astype(np.int64) for name in moved.column_names]
        owners = self._owners(columns, len(answer.outputs), work.bin_of_input())
        outputs = tuple(
            output.model_copy(update={"run": self._job.bins[number].run})
            for output, number in zip(answer.outputs, owners.tolist(), strict=True)
        )
        return outputs, self._row_map(outputs, columns, owners), sum(self._live), answer.rows

    def _work(self) -> SortedWork:
        """The work of readers and writers of the rows, without bounds."""
        control = self._control
        return SortedWork(
            table=control.spec.table,
            inputs=self._job.inputs,
            columns=tuple(control.table.data_schema.names),
            data_prefix=control.spec.data_prefix,
            target_file_size=self._job.target_file_size,
            answer_path=control.round_path(0, f"answer-{uuid.uuid4()}"),
            counters=prefix_of(control.spec.control_prefix, _COUNTERS),
            bins=self._job.bins,
            layout=self._layout,
            first_part=tuple(starts(self._parts)[:-1].tolist()),
            codec=self._job.codec,
            codec_level=self._job.codec_level,
        )

    def _read(self, work: SortedWork, added: Sequence[str]) -> DataFrame:
        from pyspark.sql.types import IntegerType, LongType, StructField, StructType

        schema = table_schema(work.table)
        types = {INPUT: IntegerType(), POSITION: LongType(), PART: IntegerType(), Z: LongType()}
        fields = [schema[name] for name in work.columns]
        fields += [StructField(name, types[name]) for name in (INPUT, POSITION, *added)]
        options = put_work(self._control, work, 0)
        return self._spark.read.format(NAME).schema(StructType(fields)).options(**options).load()

    # Cuts

    def _bounded(self, work: SortedWork) -> SortedWork:
        """Add the cuts of all bins, and for a z-order the quantiles of its columns."""
        sample = self._sample(work)
        order, ends = _by_bin(work.bin_of_input()[sample[INPUT].to_numpy()], len(self._parts))
        sample = sample.take(pa.array(order))
        cut: list[pa.Table] = []
        numbered: list[pa.Table] = []
        for number, parts in enumerate(self._parts):
            rows = sample.slice(ends[number], ends[number + 1] - ends[number])
            keys = [rows[name].combine_chunks() for name in self._layout.columns]
            if self._z:
                bounds = [quantiles(key, 1 << bits_of(len(keys))) for key in keys]
                numbered.append(_bounds(number, bounds))
                keys = [pa.array(z_values(keys, bounds))]
            places = [rows[INPUT].combine_chunks(), rows[POSITION].combine_chunks()]
            arrays = [*keys, *places]
            named = pa.table(arrays, names=[f"k{index}" for index in range(len(arrays))])
            cut.append(_bounds(number, [c.combine_chunks() for c in cuts(named, parts).columns]))
        written = {"cuts": self._sidecar("cuts", cut)}
        if numbered:
            written["quantiles"] = self._sidecar("quantiles", numbered)
        return work.model_copy(update=written)

    def _sidecar(self, name: str, tables: Sequence[pa.Table]) -> SidecarRef:
        return self._control.sidecar(0, f"{name}.arrow", to_file(pa.concat_tables(tables)))

    def _sample(self, work: SortedWork) -> pa.Table:
        """Keys and positions of a sample of each bin, of the size that its bounds need."""
        wanted = [
            max(SAMPLE_ROWS, SAMPLE_PER_PART * parts) if parts > 1 or self._z else 0
            for parts in self._parts
        ]
        scale = min(1.0, MOST_SAMPLED / max(sum(wanted), 1))
        shares = tuple(
            min(1.0, scale * rows / max(live, 1))
            for rows, live in zip(wanted, self._live, strict=True)
        )
        fields = [self._control.table.schema[name] for name in self._layout.columns]
        # The types of the reader, not those that Spark returns.
        schema = pa.schema(
            [
                *(pa.field(f.name, to_arrow_field(f).type) for f in fields),
                pa.field(INPUT, pa.int32()),
                pa.field(POSITION, pa.int64()),
            ]
        )
        if not any(shares):
            return schema.empty_table()
        keys = work.model_copy(
            update={"columns": self._layout.columns, "sample": shares, "counters": ""}
        )
        return self._read(keys, ()).toArrow().cast(schema)

    # The row map

    def _owners(
        self, columns: Sequence[Integers], outputs: int, bin_of_input: Integers
    ) -> Integers:
        """The bin of each output. Raises: CountMismatch: an output has rows of two bins."""
        which, _, output, _ = columns
        owners = np.full(outputs, -1, dtype=np.int64)
        owners[output] = bin_of_input[which]
        if bool((owners < 0).any()) or bool((owners[output] != bin_of_input[which]).any()):
            raise CountMismatch("a file of a rewrite has rows of several bins, or of none")
        return owners

    def _row_map(
        self,
        outputs: Sequence[OutputFile],
        columns: Sequence[Integers],
        owners: Integers = _NONE,
    ) -> RowMap:
        spec, job = self._control.spec, self._job
        builder = RowMapBuilder(
            RowMapIdentity(spec.table.table_id, spec.operation_id, spec.attempt, spec.table.version)
        )
        which, position, output, place = columns
        # The index of each input and output within its bin; and the rows of each bin.
        of_input = np.full(len(job.inputs), -1, dtype=np.int64)
        slot_of_input = of_input.copy()
        for number, bin_ in enumerate(job.bins):
            of_input[list(bin_.inputs)] = number
            slot_of_input[list(bin_.inputs)] = np.arange(len(bin_.inputs))
        written, written_ends = _by_bin(owners, len(job.bins))
        slot_of_output = np.empty(len(outputs), dtype=np.int64)
        order, ends = _by_bin(of_input[which], len(job.bins))
        for number, bin_ in enumerate(job.bins):
            inputs = [job.inputs[n] for n in bin_.inputs]
            for input_ in inputs:
                builder.add_input(input_.logged_path, input_.rows, dead_rows(input_))
            mine = written[written_ends[number] : written_ends[number + 1]]
            slot_of_output[mine] = np.arange(len(mine))
            rows = order[ends[number] : ends[number + 1]]
            builder.add_sorted(
                [input_.logged_path for input_ in inputs],
                [MapOutput(outputs[n].path, outputs[n].rows) for n in mine.tolist()],
                origins=(slot_of_input[which[rows]], position[rows]),
                destinations=(slot_of_output[output[rows]], place[rows]),
            )
        return builder.build()


def _by_bin(bins: Integers, count: int) -> tuple[Integers, list[int]]:
    """(all indexes, grouped by bin; the start of each bin's, and the end of the last one's)."""
    order = np.argsort(bins, kind="stable").astype(np.int64)
    return order, np.searchsorted(bins[order], np.arange(count + 1)).tolist()


def _bounds(number: int, arrays: Sequence[Any]) -> pa.Table:
    """Bounds of a bin as a table; shorter columns are padded with nulls."""
    rows = max(len(array) for array in arrays)
    filled = [pa.concat_arrays([a, pa.nulls(rows - len(a), a.type)]) for a in arrays]
    names = [f"k{index}" for index in range(len(arrays))]
    return pa.table([pa.repeat(pa.scalar(number, pa.int32()), rows), *filled], [BIN, *names])
