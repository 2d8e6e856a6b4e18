"""Builds runs from chosen files of segments. Shared by all kinds of compaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from tandem.planning.model import Bin, MergeStep, SegmentRun
from tandem.timeline.names import derived_name
from tandem.timeline.segment_files import SegmentFiles
from tandem.timeline.segments import Segments


def build_run(
    segments: Segments,
    files: SegmentFiles,
    bins: tuple[Bin, ...],
    *,
    level: int | None = None,
    steps: tuple[MergeStep, ...] = (),
    major: bool = False,
) -> SegmentRun:
    """The run that merges `files` (at least one, of any order), packed as `bins`.

    `level` is by default one more than that of the first segment, `steps` the run as a single step.
    """
    columns = segments.columns
    codes = np.unique(files.segments)
    names = tuple(columns.names_of(codes))
    first = codes[0]
    level = int(columns.levels[first]) + 1 if level is None else level
    return SegmentRun(
        segments=names,
        output=derived_name(names[0], level),
        level=level,
        sequence=int(columns.sequences[first]),
        steps=steps or (MergeStep(names, step_name(names[0], level), level),),
        bins=bins,
        interval=files.hull,
        major=major,
    )


def step_name(first: str, level: int) -> str:
    """The name of a step's output within a plan: see `MergeStep.output`."""
    return derived_name(first, level) or f"{first}.{level}"


def proposed_names(runs: Sequence[SegmentRun], live: Segments) -> Iterator[SegmentRun]:
    """The runs, with `output` only if the commit loop would assign that name at this version."""
    used = set(live.among({run.output for run in runs if run.output is not None}))
    for run in runs:
        if run.output is None or run.output in used:
            yield replace(run, output=None)
        else:
            used.add(run.output)
            yield run
