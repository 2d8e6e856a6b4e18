"""Bins of which the rows are reordered, and take more memory than a task has.

Tasks exchange blocks of Arrow data, by Spark's shuffle; no row becomes one of Spark's. First each
reads the columns of the order, and sends a sample of them to one task for each bin, which finds the
bounds of ranges (`sort_codes`). Then each reads its inputs, cuts their live rows into these ranges,
and sends these to the tasks of the parts. A task of a part takes its ranges one after the other:
each is sorted in memory, as a small bin is, and appended to the part's file. A range that turns out
to be too large is cut again.

A row's *place* is its number among the live rows of its bin, in their old order. It decides between
equal keys, and row maps are built from it. It must not import Spark, except for how inputs are
divided.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, groupby
from typing import Any, Final

import numpy as np
import pyarrow as pa

from tandem.delta.datafiles.reader import BATCH_ROWS, DataFileReader, TableFormat
from tandem.delta.datafiles.writer import ParquetDataWriter, WrittenFile
from tandem.delta.schema import to_arrow_field
from tandem.errors import CountMismatch
from tandem.jobs.formats import InputFile, JobLayout, JobSpec, RewriteJob
from tandem.jobs.port import read_side_file
from tandem.jobs.results import SideFileRef
from tandem.rowmap.run_table import starts
from tandem.spark.jobs.bins import BinResult
from tandem.spark.jobs.copied_bins import decoded, require_rows
from tandem.spark.jobs.sort_codes import (
    PLACE,
    SAMPLE,
    Cuts,
    Sample,
    Sampled,
    bits_of,
    bounds_of,
    codes_of,
    cut_into_ranges,
    in_order,
    one_array,
    quantiles,
    sampled_rows,
    z_values,
)
from tandem.spark.jobs.sorted_bins import (
    KEY_BYTES,
    ORDER_BYTES,
    effective,
    in_batches,
    key_of,
    key_paths,
    live_rows,
    part_writer,
    parts_of,
    plain,
    release_unused,
    whole_columns,
)
from tandem.spark.runtime.control import (
    Control,
    Counter,
    Counters,
    job_table_format,
    origin_of,
    reported,
)
from tandem.spark.runtime.frames import BlockFile, Exchange, KeptBlock, RowBlock, dead_rows, sized
from tandem.spark.runtime.row_files import InputSplit
from tandem.storage import Store

Z: Final = "__tandem_z"
"""Column of z-values."""
BLOCK_BYTES: Final = 16 << 20
"""Bytes of a block's rows in memory, at most, if it has more than one."""
SAMPLED_PER_RANGE: Final = 128
"""Rows of a sample for each range, at least: sizes of ranges then differ by about a tenth."""
SAMPLE_BYTES: Final = 160 << 20
"""Bytes of a bin's sample in memory. It has fewer rows if these are long."""
READ_AHEAD: Final = 1 << 20
"""Encoded bytes of each column in memory, if row groups are large."""
_MARGIN: Final = 2
"""Ranges are so many times smaller than they may be: sizes are estimates, and bounds a sample's."""
_ROUND: Final = 1
"""The round of control files: beside those of bins that were sorted in tasks, whose counters mean
other files."""
_NO_PLACE: Final = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class LargeBin:
    """Bin `index` of a job: its part number `first_part` among those of all large bins, how many
    parts and live rows it has."""

    index: int
    first_part: int
    parts: int
    rows: int


@dataclass(frozen=True, slots=True)
class SortedPart:
    """The files of a part, and in files of their own the places of its rows, in order."""

    part: int
    files: tuple[WrittenFile, ...]
    places: tuple[SideFileRef, ...]


def sort_large(
    control: Control, numbers: Sequence[int], memory: int, exchange: Exchange
) -> list[BinResult]:
    """Rewrite these bins in the order of the job's layout.

    Args:
        memory: bytes that a task may take for rows.
    Raises:
        DataFileMissing, StorageError: an input does not exist or cannot be read.
        CountMismatch: an input has another number of rows than planned, or some are lost.
    """
    from tandem.spark.runtime.datasource import shares

    job = control.spec.job
    assert isinstance(job, RewriteJob)
    parts = [parts_of(job, index) for index in numbers]
    first = starts(parts).tolist()
    bins = [
        LargeBin(
            index, first[k], parts[k], sum(live_rows(job.inputs[n]) for n in _inputs(job, index))
        )
        for k, index in enumerate(numbers)
    ]
    inputs = [n for index in numbers for n in _inputs(job, index)]
    tasks = [share.splits for share in shares([job.inputs[n] for n in inputs])]
    counters = control.counters(_ROUND)
    work = LargeSort(
        control.store,
        control.spec,
        memory,
        tuple(bins),
        tuple(inputs),
        tuple(tasks),
        control.scratch,
        counters,
    )
    total = len(inputs), sum(job.inputs[n].size for n in inputs)

    def done(counts: Mapping[int, int]) -> tuple[int, int]:
        read = [split for number, n in counts.items() for split in tasks[number][:n]]
        size = sum(job.inputs[inputs[split.input]].size / split.parts for split in read)
        return int(sum(1 / split.parts for split in read) + 1e-6), int(size)

    with reported(control, "Sorting", total, done, _ROUND):
        cuts = {
            each.number: each for each in exchange(len(tasks), work.sample, len(bins), work.cuts)
        }
        sorted_ = exchange(len(tasks), lambda number: work.cut(number, cuts), first[-1], work.sort)
    by_part = {each.part: each for each in sorted_}
    return [_result(control, bin_, by_part) for bin_ in bins]


def _inputs(job: RewriteJob, index: int) -> Sequence[int]:
    return job.bins[index].inputs


def _result(control: Control, bin_: LargeBin, by_part: Mapping[int, SortedPart]) -> BinResult:
    numbers = range(bin_.first_part, bin_.first_part + bin_.parts)
    parts = [by_part[number] for number in numbers if number in by_part]
    files = tuple(file for part in parts for file in part.files)
    written = sum(file.rows for file in files)
    ranks = np.full(bin_.rows, _NO_PLACE, dtype=np.uint32)
    found = 0
    for ref in (ref for part in parts for ref in part.places):
        places = np.frombuffer(read_side_file(control.scratch, ref), dtype=np.uint32)
        if found + len(places) <= bin_.rows and int(places.max()) < bin_.rows:
            ranks[places] = np.arange(found, found + len(places), dtype=np.uint32)
        found += len(places)
    if not found == written == bin_.rows:
        raise CountMismatch(
            "a rewrite would not have kept every row",
            resource=f"bin {bin_.index}",
            found=f"{written} rows written, {found} with a place",
            expected=f"{bin_.rows} live rows by the plan",
        )
    return BinResult(bin_.index, files, found, ranks=ranks)


@dataclass(frozen=True)
class LargeSort:
    """The work of the tasks. `tasks` says what each reads, by number in `inputs`, which are those
    of all bins, one bin after the other."""

    store: Store
    spec: JobSpec
    memory: int
    bins: tuple[LargeBin, ...]
    inputs: tuple[int, ...]
    tasks: tuple[tuple[InputSplit, ...], ...]
    scratch: Store
    counters: Counters

    # Bounds, from a sample

    def sample(self, task: int) -> Iterator[RowBlock]:
        """The sample of what a task reads, a block for each split."""
        for split in self.tasks[task]:
            number = self._bin_of[split.input]
            chosen = sampled_rows(self.bins[number].rows)
            nulls = np.zeros(len(self._columns), dtype=np.bool_)
            size = 0
            found = [self._key_schema.empty_table()]
            for row_bytes, first, whole in self._rows(split, self._outermost):
                batch = self._keys_of(whole)
                rows = batch.num_rows
                size += row_bytes * rows
                nulls |= [column.null_count > 0 for column in batch.columns]
                low, high = np.searchsorted(chosen, (first, first + rows))
                places = chosen[low:high]
                taken = plain(batch.take(pa.array(places - first)))
                found.append(pa.table([*taken.columns, pa.array(places)], schema=self._key_schema))
            sampled = Sampled(size, tuple(nulls.tolist()), pa.concat_tables(found))
            yield RowBlock(number, data=pickle.dumps(sampled))

    def cuts(self, blocks: Iterator[RowBlock]) -> Iterator[Cuts]:
        """The cuts of each bin of which there is a sample."""
        found: dict[int, Sample] = {}
        for block in blocks:
            sample = found.setdefault(block.part, Sample(SAMPLE_BYTES))
            sample.add(pickle.loads(block.data))
        for number, sample in found.items():
            yield self._cuts_of(number, sample)

    def _cuts_of(self, number: int, sample: Sample) -> Cuts:
        bin_ = self.bins[number]
        rows = sample.rows
        needed = self._needed(bin_.rows, sample.size, sample.size // 2)
        most = rows.num_rows // SAMPLED_PER_RANGE // bin_.parts
        ranges = max(1, min(-(-needed // (self._aim * bin_.parts)), most))
        if not self._z:
            return Cuts(number, ranges, bounds_of(rows, self._keys, ranges * bin_.parts))
        columns = {name: rows[name].combine_chunks() for name in self._columns}
        count = 1 << bits_of(len(columns))
        picked = tuple(k.take(pa.array(quantiles(codes_of(k), count))) for k in columns.values())
        cuts = Cuts(number, ranges, rows, picked, sample.nulls)
        z = pa.table({Z: self._z_values([*columns.values()], cuts), PLACE: rows[PLACE]})
        return replace(cuts, bounds=bounds_of(z, self._keys, ranges * bin_.parts))

    # Cutting

    def cut(self, task: int, cuts: Mapping[int, Cuts]) -> Iterator[RowBlock]:
        """What a task reads, cut into ranges."""
        counter = Counter(self.counters, task)
        names = self._table.data_schema.names
        for number, splits in groupby(self.tasks[task], lambda split: self._bin_of[split.input]):
            held: list[pa.RecordBatch] = []
            size = 0
            for split in splits:
                for _, first, batch in self._rows(split, names):
                    held.append(_placed(batch, first))
                    size += batch.nbytes
                    if size > self.memory // 6:
                        yield from self._blocks(held, cuts[number])
                        size = 0
                counter.add()
            if held:
                yield from self._blocks(held, cuts[number])
        counter.show()

    def _blocks(self, held: list[pa.RecordBatch], cuts: Cuts) -> Iterator[RowBlock]:
        """Takes the batches."""
        columns = whole_columns(held, [*self._table.data_schema.names, PLACE])
        if self._z:
            values = [key_of(columns[path[0]], path) for path in key_paths(self._layout)]
            columns[Z] = self._z_values(values, cuts)
        first_part = self.bins[cuts.number].first_part
        for range_, rows in cut_into_ranges(columns, self._keys, cuts.bounds, self._block_bytes):
            part, within = divmod(range_, cuts.ranges)
            yield sized(first_part + part, within, rows.column(PLACE)[0].as_py(), rows)
        columns.clear()
        release_unused()

    def _z_values(self, columns: Sequence[Any], cuts: Cuts) -> Any:
        keys, bounds = [], []
        for column, quantile in zip(columns, cuts.quantiles, strict=True):
            codes = codes_of(one_array([quantile, column]))
            bounds.append(codes.values[: len(quantile)])
            keys.append(replace(codes, values=codes.values[len(quantile) :]))
        hilbert = self._layout.strategy == "Clustering"
        return pa.array(z_values(keys, bounds, cuts.nulls, hilbert=hilbert).view(np.int64))

    # Sorting

    def sort(self, blocks: Iterator[RowBlock]) -> Iterator[SortedPart]:
        """Write the parts whose blocks these are."""
        parts: dict[int, dict[int, list[KeptBlock]]] = {}
        with BlockFile() as file:
            for block in blocks:
                ranges = parts.setdefault(block.part, {})
                ranges.setdefault(block.range_, []).append(file.add(block))
            for part, ranges in sorted(parts.items()):
                yield self._sorted_part(file, part, [ranges[n] for n in sorted(ranges)])

    def _sorted_part(
        self, file: BlockFile, part: int, ranges: Iterable[Sequence[KeptBlock]]
    ) -> SortedPart:
        [bin_] = [b for b in self.bins if b.first_part <= part < b.first_part + b.parts]
        control = Control(self.spec, self.scratch)
        places: list[SideFileRef] = []
        writer: ParquetDataWriter | None = None
        with ExitStack() as opened:
            for range_ in chain.from_iterable(self._fitting(file, each) for each in ranges):
                columns = self._loaded(file, range_)
                order = in_order(
                    [codes_of(columns[name]) for name in self._keys], len(columns[PLACE])
                )
                in_their_order = columns.pop(PLACE).to_numpy()[order].tobytes()
                places.append(control.side_file(_ROUND, "places", in_their_order))
                columns.pop(Z, None)
                for batch in in_batches(columns, order):
                    if writer is None:
                        writer = opened.enter_context(
                            part_writer(self.store, self.spec, bin_.index, self._table, batch)
                        )
                    writer.write(batch)
                columns.clear()
                release_unused()
        return SortedPart(part, writer.files if writer is not None else (), tuple(places))

    def _loaded(self, file: BlockFile, blocks: Sequence[KeptBlock]) -> dict[str, Any]:
        """The columns of a range, whose rows are in the order of their places."""
        batches = [file.rows(each) for each in sorted(blocks, key=lambda each: each.block.first)]
        return whole_columns(batches, batches[0].schema.names)

    def _fitting(
        self, file: BlockFile, blocks: Sequence[KeptBlock]
    ) -> Iterator[Sequence[KeptBlock]]:
        """A range, or the ranges into which it has to be cut to fit into memory."""
        found = [each.block for each in blocks]
        rows, size = sum(b.rows for b in found), sum(b.size for b in found)
        needed = self._needed(rows, size, sum(b.largest for b in found))
        if rows <= 1 or needed <= self._limit:
            yield blocks
            return
        # So that the columns of the order of so many rows fit into memory, too.
        most = max(2, min(SAMPLE // 16, self.memory // 4 // (size // rows + 1), rows))
        ranges = min(-(-needed // self._aim), most)
        bounds = bounds_of(self._resampled(file, blocks, most), self._keys, max(2, ranges))
        smaller: dict[int, list[KeptBlock]] = {}
        for kept in blocks:
            batch = file.rows(kept)
            columns = dict(zip(batch.schema.names, batch.columns, strict=True))
            for range_, some in cut_into_ranges(columns, self._keys, bounds, self._block_bytes):
                block = sized(kept.block.part, range_, some.column(PLACE)[0].as_py(), some)
                smaller.setdefault(range_, []).append(file.add(block))
        for range_ in sorted(smaller):
            yield from self._fitting(file, smaller[range_])

    def _resampled(self, file: BlockFile, blocks: Sequence[KeptBlock], count: int) -> pa.Table:
        """So many rows of a range: the columns of the order, by place."""
        in_place = sorted(blocks, key=lambda each: each.block.first)
        ends = starts([each.block.rows for each in in_place])
        rows = int(ends[-1])
        chosen = np.sort(np.random.default_rng(rows).choice(rows, count, replace=False))
        found = []
        for number, kept in enumerate(in_place):
            low, high = np.searchsorted(chosen, ends[number : number + 2])
            batch = file.rows(kept).select([*self._keys, PLACE])
            taken = plain(batch.take(pa.array(chosen[low:high] - ends[number])))
            found.append(pa.Table.from_batches([taken]))
        return pa.concat_tables(found)

    # Reading

    def _rows(
        self, split: InputSplit, columns: Sequence[str]
    ) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """(bytes of a row in memory with all columns, the place of the first row, live rows)."""
        input_ = self._job.inputs[self.inputs[split.input]]
        dead = dead_rows(input_)
        with self._opened(input_, split, columns) as reader:
            require_rows(input_, reader.num_rows)
            groups = split.of(len(reader.row_groups))
            start = sum(reader.row_groups[: groups.start])
            place = self._first_places[split.input] + start
            place -= dead.range_cardinality(0, start) if dead else 0
            row_bytes = reader.row_bytes
            most = max(1, min(BATCH_ROWS, self.memory // 24 // row_bytes))
            for batch in reader.batches(dead=dead, row_groups=groups, batch_rows=most):
                yield row_bytes, place, batch
                place += batch.num_rows

    def _opened(
        self, input_: InputFile, split: InputSplit, columns: Sequence[str]
    ) -> DataFileReader:
        def opened(read_ahead: int) -> DataFileReader:
            return DataFileReader(
                self.store,
                decoded(input_),
                self._table,
                columns=columns,
                dictionaries=True,
                read_ahead=read_ahead,
                origin=origin_of(input_, self._table),
            )

        reader = opened(0)
        groups = split.of(len(reader.row_groups))
        size = sum(reader.metadata.row_group(number).total_byte_size for number in groups)
        if size <= self.memory // 4:
            return reader
        reader.close()
        return opened(READ_AHEAD)

    # What each task knows

    @property
    def _job(self) -> RewriteJob:
        assert isinstance(self.spec.job, RewriteJob)
        return self.spec.job

    @cached_property
    def _table(self) -> TableFormat:
        return job_table_format(self.spec.table)

    @cached_property
    def _layout(self) -> JobLayout:
        assert self._job.layout is not None
        return effective(self._job.layout)

    @property
    def _columns(self) -> tuple[str, ...]:
        return self._layout.columns

    @property
    def _outermost(self) -> tuple[str, ...]:
        """The columns to read for those of the order."""
        return tuple(dict.fromkeys(path[0] for path in key_paths(self._layout)))

    def _keys_of(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        paths = key_paths(self._layout)
        arrays = [key_of(batch.column(path[0]), path) for path in paths]
        return pa.RecordBatch.from_arrays(arrays, names=list(self._columns))

    @property
    def _z(self) -> bool:
        return self._layout.strategy != "Sort"

    @property
    def _keys(self) -> tuple[str, ...]:
        """The columns of blocks by which their rows are sorted."""
        return (Z,) if self._z else self._columns

    @cached_property
    def _key_schema(self) -> pa.Schema:
        paths = key_paths(self._layout)
        empty = {path[0]: to_arrow_field(self._table.schema[path[0]]).type for path in paths}
        types = [key_of(pa.array([], empty[path[0]]), path).type for path in paths]
        fields = [pa.field(name, type_) for name, type_ in zip(self._columns, types, strict=True)]
        return pa.schema([*fields, pa.field(PLACE, pa.uint32())])

    @cached_property
    def _bin_of(self) -> list[int]:
        """The number of the bin of each of `inputs`."""
        return [n for n, bin_ in enumerate(self.bins) for _ in self._job.bins[bin_.index].inputs]

    @cached_property
    def _first_places(self) -> list[int]:
        """The place of the first live row of each of `inputs`."""
        rows = ([live_rows(self._job.inputs[n]) for n in self._job.bins[b.index].inputs]
                for b in self.bins)  # fmt: skip
        return [place for each in rows for place in starts(each)[:-1].tolist()]

    # Memory

    def _needed(self, rows: int, size: int, largest: int) -> int:
        """Bytes that a range takes while it is sorted, of which its rows are `size`."""
        return size + max(largest, rows * (ORDER_BYTES + KEY_BYTES * len(self._columns)))

    @property
    def _limit(self) -> int:
        """Bytes that a range may take while it is sorted. The rest is for what is written."""
        return max(self.memory * 3 // 4, 1)

    @property
    def _aim(self) -> int:
        return max(self._limit // _MARGIN, 1)

    @property
    def _block_bytes(self) -> int:
        return max(min(BLOCK_BYTES, self.memory // 32), 1)


def _placed(batch: pa.RecordBatch, first: int) -> pa.RecordBatch:
    places = pa.array(np.arange(first, first + batch.num_rows, dtype=np.uint32))
    return batch.append_column(PLACE, places)
