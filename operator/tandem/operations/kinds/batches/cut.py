"""Cuts the plan of a compaction into batches, and plans one of them on a later version.

Pure. Never cuts a bin, nor a run that fits into a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tandem.operations.kinds.batches.record import (
    BatchesRecord,
    BatchOfBins,
    BinOfBatch,
    RunOfBatches,
    StepOfRun,
)
from tandem.planning.bins import bin_of
from tandem.planning.model import Bin, MergeStep, SegmentRun
from tandem.planning.runs import build_run
from tandem.timeline.segment_files import SegmentFiles
from tandem.timeline.segments import Segments


@dataclass(frozen=True, slots=True)
class _Unit:
    """Bins that are committed together."""

    bins: tuple[BinOfBatch, ...]
    bytes: int


def batches_of(
    runs: Sequence[SegmentRun], most_bytes: int, *, whole_runs: bool
) -> tuple[BatchOfBins, ...]:
    """The runs in batches of at most `most_bytes` of input, in order. A run that is larger is cut
    between its bins, unless `whole_runs`; what cannot be cut is a batch by itself."""
    groups: list[list[_Unit]] = [[]]
    total = 0
    for unit in _units(runs, most_bytes, whole_runs=whole_runs):
        if groups[-1] and total + unit.bytes > most_bytes:
            groups.append([])
            total = 0
        groups[-1].append(unit)
        total += unit.bytes
    return tuple(
        BatchOfBins(
            bins=tuple(bin_ for unit in group for bin_ in unit.bins),
            bytes=sum(unit.bytes for unit in group),
        )
        for group in groups
    )


def _units(runs: Sequence[SegmentRun], most_bytes: int, *, whole_runs: bool) -> list[_Unit]:
    units: list[_Unit] = []
    for number, run in enumerate(runs):
        bins = [
            _Unit(
                (BinOfBatch(run=number, files=tuple(file.path for file in each.files)),),
                sum(file.size for file in each.files),
            )
            for each in run.bins
        ]
        size = sum(each.bytes for each in bins)
        if whole_runs or size <= most_bytes:
            units.append(_Unit(tuple(bin_ for each in bins for bin_ in each.bins), size))
        else:
            units += bins
    return units


def runs_of(runs: Sequence[SegmentRun], batches: Sequence[BatchOfBins]) -> tuple[RunOfBatches, ...]:
    """What the batches keep of the runs."""
    parts = [0] * len(runs)
    for batch in batches:
        for number in {each.run for each in batch.bins}:
            parts[number] += 1
    return tuple(
        RunOfBatches(
            level=run.level,
            major=run.major,
            steps=tuple(
                StepOfRun(inputs=step.inputs, output=step.output, level=step.level)
                for step in (run.steps if parts[number] == 1 else ())
            ),
        )
        for number, run in enumerate(runs)
    )


def runs_at(
    record: BatchesRecord,
    number: int,
    live: Segments,
    target_file_size: int,
    useful: Callable[[Bin], bool],
) -> tuple[SegmentRun, ...]:
    """The runs of one batch on a version whose segments are `live`. Files that are gone are left
    out, and bins that have lost files if rewriting the rest is not `useful`."""
    batch = record.batches[number - 1]
    wanted = frozenset(path for each in batch.bins for path in each.files)
    files = live.files
    files = files.where(files.among(wanted))
    place = dict(zip(files.columns.paths_at(files.places), files.places.tolist(), strict=True))
    found: dict[int, list[Bin]] = {}
    for each in batch.bins:
        places = [place[path] for path in each.files if path in place]
        if not places:
            continue
        chosen = SegmentFiles(files.columns, np.array(places, np.int64))
        bin_ = bin_of(chosen, target_file_size)
        if len(places) == len(each.files) or useful(bin_):
            found.setdefault(each.run, []).append(bin_)
    return tuple(_run(live, tuple(bins), record.runs[run]) for run, bins in sorted(found.items()))


def _run(live: Segments, bins: tuple[Bin, ...], planned: RunOfBatches) -> SegmentRun:
    taken = SegmentFiles.of(each.files for each in bins)
    assert taken is not None, "a run has a bin, and a bin a file"
    run = build_run(live, taken, bins, level=planned.level, major=planned.major)
    steps = tuple(MergeStep(step.inputs, step.output, step.level) for step in planned.steps)
    return replace(run, steps=steps) if steps else run
