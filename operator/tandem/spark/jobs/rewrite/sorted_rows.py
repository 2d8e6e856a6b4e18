"""The data source of rows to sort: `datasource` plus sort keys on reading and bins on writing.

Reading adds the part of each row and, for `ZOrder`, its z-value; or reads only the keys of a
sample. Writing gives each bin its own files, under the partition values that its inputs were logged
with. The cuts and quantiles of each bin are in a separate file.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceReader

from tandem.delta.datafiles.writer import ParquetDataWriter
from tandem.errors import ManifestInvalid
from tandem.jobs.formats import JobBin, JobLayout
from tandem.jobs.results import SidecarRef
from tandem.spark.jobs.rewrite.ordering import Integers, part_of, z_values
from tandem.spark.jobs.rewrite.sorted_bins import ROOM
from tandem.spark.runtime.datasource import RowsReader, RowsWriter, get_work
from tandem.spark.runtime.input_splits import InputSplit
from tandem.spark.runtime.row_files import INPUT, POSITION, RowsWork
from tandem.storage import Store

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

NAME = "tandem-sorted-rows"
PART = "__tandem_part"
Z = "__tandem_z"
BIN = "bin"
"""Column of cuts and quantiles: the bin of a row of theirs."""


class SortedWork(RowsWork):
    """`bins` and `layout` are the job's; `first_part` counts the parts of the bins before each.

    `sample`: the share of each bin's rows to read, for a read of a sample only. `cuts` and
    `quantiles` are Arrow files of bounds (`ordering`) with their bin; `quantiles` only for a
    z-order, padded with nulls.
    """

    bins: tuple[JobBin, ...] = ()
    layout: JobLayout
    first_part: tuple[int, ...] = ()
    sample: tuple[float, ...] = ()
    cuts: SidecarRef | None = None
    quantiles: SidecarRef | None = None
    codec: str = ""
    codec_level: int | None = None

    def bin_of_input(self) -> Integers:
        """The bin of each input; -1 if it belongs to none."""
        found = np.full(len(self.inputs), -1, dtype=np.int64)
        for number, bin_ in enumerate(self.bins):
            found[list(bin_.inputs)] = number
        return found


class SortedRowsSource(DataSource):
    """`spark.read.format("tandem-sorted-rows")`; options as for `tandem-rows`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def _work(self) -> tuple[Store, SortedWork]:
        store, data = get_work(self.options)
        return store, SortedWork.model_validate_json(data)

    def reader(self, schema: StructType) -> DataSourceReader:
        return SortedReader(*self._work(), tuple(schema.names))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:  # noqa: ARG002
        return SortedWriter(*self._work(), tuple(schema.names))


class SortedReader(RowsReader):
    def __init__(self, control: Store, work: SortedWork, names: tuple[str, ...]) -> None:
        super().__init__(control, work, tuple(n for n in names if n not in (PART, Z)))
        self._sorted = work
        self._all_names = names
        self._files: dict[str, pa.Table] = {}
        self._cut: dict[int, pa.Table] = {}
        self._numbered: dict[int, list[Any]] = {}

    def _read_split(self, store: Store, split: InputSplit) -> Iterator[pa.RecordBatch]:
        number = int(self._bins[split.input])
        if not self._sorted.sample:
            for batch in super()._read_split(store, split):
                yield self._with_keys(batch, number)
        elif self._sorted.sample[number]:
            path = self._sorted.inputs[split.input].logged_path
            seed = zlib.crc32(f"{path} {split.part}".encode())
            yield from _sampled(
                super()._read_split(store, split), self._sorted.sample[number], seed
            )

    @cached_property
    def _bins(self) -> Integers:
        return self._sorted.bin_of_input()

    def _with_keys(self, batch: pa.RecordBatch, number: int) -> pa.RecordBatch:
        keys = [batch.column(n) for n in self._sorted.layout.columns]
        added: dict[str, Any] = {}
        if Z in self._all_names:
            added[Z] = pa.array(z_values(keys, self._quantiles_of(number)))
            keys = [added[Z]]
        cuts = self._cuts_of(number)
        rows = pa.table([*keys, batch.column(INPUT), batch.column(POSITION)], schema=cuts.schema)
        part = part_of(rows, cuts) + self._sorted.first_part[number]
        added[PART] = pa.array(part.astype(np.int32))
        arrays = [added[n] if n in added else batch.column(n) for n in self._all_names]
        return pa.RecordBatch.from_arrays(arrays, names=list(self._all_names))

    def _quantiles_of(self, number: int) -> list[Any]:
        if number not in self._numbered:
            bounds = self._bounds(self._sorted.quantiles, number)
            self._numbered[number] = [c.combine_chunks().drop_null() for c in bounds.columns]
        return self._numbered[number]

    def _cuts_of(self, number: int) -> pa.Table:
        if number not in self._cut:
            self._cut[number] = self._bounds(self._sorted.cuts, number)
        return self._cut[number]

    def _bounds(self, where: SidecarRef | None, number: int) -> pa.Table:
        assert where is not None
        if where.path not in self._files:
            data = self._control.get(where.path)
            if hashlib.sha256(data).hexdigest() != where.sha256:
                raise ManifestInvalid(
                    "a control file of the job is not what its driver wrote",
                    resource=where.path,
                    remedy="Find out what else writes to the table's _tandem folder",
                )
            self._files[where.path] = pa.ipc.open_file(data).read_all()
        table = self._files[where.path]
        return table.filter(pc.equal(table[BIN], number)).drop_columns([BIN])


def _sampled(
    batches: Iterator[pa.RecordBatch], share: float, seed: int
) -> Iterator[pa.RecordBatch]:
    """A random but reproducible sample: regular intervals may coincide with a pattern in the
    rows."""
    chance = np.random.default_rng(seed)
    for batch in batches:
        chosen = batch.filter(pa.array(chance.random(batch.num_rows) < share))
        if chosen.num_rows:
            yield chosen


class SortedWriter(RowsWriter):
    """A task writes one part of one bin; rows of several bins would be kept separate."""

    def __init__(self, control: Store, work: SortedWork, names: tuple[str, ...]) -> None:
        super().__init__(control, work, names)
        self._sorted = work

    def _open(self, key: tuple[str | None, ...]) -> ParquetDataWriter:
        (number,) = key
        assert number is not None
        return ParquetDataWriter(
            self._control,
            self._work.data_prefix,
            self._table,
            partition_values=self._sorted.bins[int(number)].partition_values,
            target_size=ROOM * self._work.target_file_size,
            task=self._task(),
            codec=self._sorted.codec,
            codec_level=self._sorted.codec_level,
            describe=self._describe,
        )

    def _split(
        self, batch: pa.RecordBatch
    ) -> Iterator[tuple[tuple[str | None, ...], pa.RecordBatch]]:
        numbers = self._bins[batch.column(INPUT).to_numpy()]
        for number in np.unique(numbers).tolist():
            mine = numbers == number
            yield (str(number),), batch if mine.all() else batch.filter(pa.array(mine))

    @cached_property
    def _bins(self) -> Integers:
        return self._sorted.bin_of_input()

    def _joined(self, tables: Sequence[pa.Table]) -> pa.Table:
        """In the order of arrival: a row map needs no order."""
        return pa.concat_tables(tables)
