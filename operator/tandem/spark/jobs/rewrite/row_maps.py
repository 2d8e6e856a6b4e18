"""The row map of a rewritten bin, from the number of rows in each of its files.

Where rows keep their order, the cut points determine the map; where they do not, their ranks do. No
I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from pyroaring import BitMap64

from tandem.delta.datafiles.writer import WrittenFile
from tandem.errors import CountMismatch
from tandem.jobs.formats import JobBin, JobSpec, RewriteJob
from tandem.rowmap.permutation import Ranks
from tandem.rowmap.rowmap import MapOutput, RowMap, RowMapBuilder, RowMapIdentity
from tandem.spark.jobs.rewrite.bins import BinResult
from tandem.spark.runtime.frames import dead_rows


def row_map_of(spec: JobSpec, job: RewriteJob, result: BinResult) -> RowMap:
    """The map of a bin's rows. Raises: CountMismatch, RowMapInvalid."""
    bin_ = job.bins[result.index]
    if result.parts is not None:
        from tandem.spark.jobs.rewrite.divided import divided_row_map

        return divided_row_map(spec, job, bin_, result.parts)
    if result.ranks is not None:
        return _sorted_row_map(spec, job, bin_, result.files, result.ranks)
    return bin_row_map(spec, job, bin_, result.files, result.kept)


def _sorted_row_map(
    spec: JobSpec, job: RewriteJob, bin_: JobBin, files: Sequence[WrittenFile], ranks: Ranks
) -> RowMap:
    builder = RowMapBuilder(_identity(spec))
    inputs = [job.inputs[i] for i in bin_.inputs]
    for input_ in inputs:
        builder.add_input(input_.logged_path, input_.rows, dead_rows(input_))
    outputs = [MapOutput(file.path, file.rows) for file in files]
    builder.add_ranks([input_.logged_path for input_ in inputs], outputs, ranks)
    return builder.build()


def _identity(spec: JobSpec) -> RowMapIdentity:
    return RowMapIdentity(spec.table.table_id, spec.operation_id, spec.attempt, spec.table.version)


def bin_row_map(
    spec: JobSpec,
    job: RewriteJob,
    bin_: JobBin,
    files: Sequence[WrittenFile],
    kept: Collection[int] = (),
) -> RowMap:
    """The map of one bin's rows. Rows keep their order, so the row counts of the outputs determine
    it. `kept` are the numbers of inputs whose deleted rows are in the outputs: the map has none of
    theirs as dead. Raises: CountMismatch."""
    builder = RowMapBuilder(_identity(spec))
    inputs = [job.inputs[i] for i in bin_.inputs]
    left_out = [BitMap64() if n in kept else dead_rows(each) for n, each in enumerate(inputs)]
    for input_, dead in zip(inputs, left_out, strict=True):
        builder.add_input(input_.logged_path, input_.rows, dead)
    room = [(file.path, file.rows) for file in files]
    for input_, dead in zip(inputs, left_out, strict=True):
        start = 0
        left = input_.rows - len(dead)
        while left:
            if not room:
                raise CountMismatch(
                    "some rows of a rewrite are in no output", resource=input_.logged_path
                )
            path, free = room[0]
            take = min(free, left)
            end = input_.rows if take == left else after_live(dead, start, take)
            builder.add_run(input_.logged_path, start, end, path)
            start, left = end, left - take
            if take == free:
                room.pop(0)
            else:
                room[0] = (path, free - take)
    if room:
        raise CountMismatch("an output of a rewrite has rows of no input", resource=room[0][0])
    return builder.build()


def after_live(dead: BitMap64, start: int, count: int) -> int:
    """The least position p with `count` live rows in [start, p); there are at least that many."""
    low, high = start + count, start + count + len(dead)
    while low < high:
        middle = (low + high) // 2
        live = middle - start - (dead.range_cardinality(start, middle) if dead else 0)
        if live < count:
            low = middle + 1
        else:
            high = middle
    return low
