"""The plan of a compaction: the entry point of this package."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from tandem.planning.major import (
    check_selection,
    chosen_files,
    custom_runs,
    major_runs,
    semi_major_runs,
)
from tandem.planning.minor import level_thresholds, minor_runs
from tandem.planning.plans import CompactionPlan, CompactionRequest
from tandem.planning.runs import proposed_names
from tandem.spec.compaction import CompactionType
from tandem.spec.fields import format_duration
from tandem.spec.table import Granularity
from tandem.timeline.segments import Segment, Segments

# Files too close to the newest data to be compacted: `skipOffsetFromLatest`.
#
# Measured from the newest data of the table, never from a clock, so that a plan depends only on
# the table, and the rule still applies to a table that is no longer written.


def skipped_files(
    segments: Sequence[Segment], offset_ms: int, granularity: Granularity | None
) -> frozenset[str]:
    """Logged paths of the files that a compaction leaves out.

    With a time column: those that reach into the last `offset_ms` before the end of the newest
    chunk (Druid's rule of the same name), and those of unknown time, since they might. Without
    one, or with the one chunk of granularity `All`: those of the segments whose sequence, which is
    the time of their first load, is less than `offset_ms` before that of the newest segment. A
    compacted segment is as old as its first input, so compaction does not make data young.
    """
    if offset_ms <= 0 or not segments:
        return frozenset()
    live = Segments.of(segments)
    if granularity is None or granularity is Granularity.ALL:
        sequences = live.sequences
        return live.where(sequences.max() - sequences < offset_ms).files.paths
    files = live.files
    intervals = files.columns.intervals
    found = [time for code in np.unique(files.interval_codes) if (time := intervals[code])]
    limit = max((time.end_ms for time in found), default=0) - offset_ms
    young = np.array([time is None or time.end_ms > limit for time in intervals])
    return files.where(young[files.interval_codes]).paths


_NOT_ADJACENT = (
    "Segments qualify for a minor compaction, but they are not adjacent (minor.adjacentOnly): live "
    "segments that stay lie between them, or some have no root. It needs SemiMajor or Major."
)


def plan_compaction(
    segments: Sequence[Segment],
    request: CompactionRequest,
    *,
    granularity: Granularity | None = None,
    past: Sequence[Segment] = (),
    divided: Segments | None = None,
) -> CompactionPlan:
    """What a compaction would rewrite, deterministically.

    Args:
        segments: the live segments at the read version, in order (`timeline.segments`), built
            with the time column that `granularity` belongs to.
        request: the compaction to plan.
        granularity: that of the LakeTable's `time`; None if it has none.
        past: segments that are no longer live (`timeline.history`), for messages.
        divided: the same segments, built with the granularity at whose borders outputs of a
            `SemiMajor` end; None if these do not matter.

    Raises:
        InvalidSpec: contradictory or impossible requests, unknown chunks.
        UnknownSegment: `Custom` names a segment that is not live.
    """
    check_selection(request)
    live = Segments.of(segments)
    young = skipped_files(live, request.skip_offset_ms, granularity)
    if request.type is CompactionType.MINOR:
        runs = minor_runs(live, request, timed=granularity is not None, young=young)
    elif request.type is CompactionType.SEMI_MAJOR:
        runs = semi_major_runs(live, request, granularity, young=young, divided=divided)
    elif request.type is CompactionType.MAJOR:
        runs = major_runs(live, request, young=young)
    else:
        runs = custom_runs(live, request, past, young=young)
    if not runs:
        held = sorted(live.among(request.excluded))
        if request.type is CompactionType.MINOR:
            why = why_no_minor(len(live), held, len(young), request)
        else:
            why = _why_nothing(live, request, granularity, _held(held))
            why += _left_young(len(young), request)
        if request.adjacent_only and request.type is CompactionType.MINOR:
            freely = replace(request, adjacent_only=False)
            if minor_runs(live, freely, timed=granularity is not None, young=young):
                why = _NOT_ADJACENT + _left_young(len(young), request)
        return CompactionPlan((), why)
    return CompactionPlan(tuple(proposed_names(runs, live)))


def why_no_minor(count: int, held: Sequence[str], young: int, request: CompactionRequest) -> str:
    """Why a table of `count` segments has nothing for a minor compaction.

    Args:
        held: those of them that other operations hold, in order.
        young: how many files `skipOffsetFromLatest` leaves out.
    """
    if not count:
        return "The table has no segments." + _left_young(young, request)
    wanted = " or ".join(
        f"{number} of level {level}"
        for level, number in enumerate(level_thresholds(request.thresholds))
        if number
    )
    gain = "another order" if request.layout_label else "fewer files"
    return (
        f"None of {_segments(count)} qualify for a minor compaction. It needs {wanted} that are "
        f"not preserved, too large or compacted by Major, and must result in {gain}."
        f"{_held(held)}{_left_young(young, request)}"
    )


def _segments(count: int) -> str:
    return f"{count} segment{'s' if count > 1 else ''}"


def _held(names: Sequence[str]) -> str:
    return f" Held by other operations: {', '.join(names)}." if names else ""


def _left_young(young: int, request: CompactionRequest) -> str:
    if not young:
        return ""
    offset = format_duration(request.skip_offset_ms)
    files = f"{young} file{'s' if young > 1 else ''}"
    return f" Skipped: {files} within {offset} of the newest data (skipOffsetFromLatest)."


def _why_nothing(
    segments: Segments, request: CompactionRequest, granularity: Granularity | None, tail: str
) -> str:
    if not segments:
        return "The table has no segments."
    count = _segments(len(segments))
    label = request.layout_label
    if request.type is CompactionType.MAJOR:
        if label:
            return f"Of {count}, none is to be put in order {label}.{tail}"
        return (
            f"Of {count}, no two adjacent ones stay below {request.target_segment_size:,} bytes "
            f"together and would result in fewer files.{tail}"
        )
    if request.type is CompactionType.SEMI_MAJOR:
        if not chosen_files(segments, request, granularity):
            # Not an error: a chunk may be named before its data arrives. But a typo must show.
            return f"No file lies in {', '.join(request.chunks)}.{tail}"
        chosen = " of the chosen chunks" if request.chunks else ""
        return f"The files{chosen} already match the request.{tail}"
    if label:
        return f"The selected files are already in order {label}.{tail}"
    if request.selected is not None:
        return f"Compacting the selected files would not leave fewer files.{tail}"
    return f"A single segment cannot be merged: choose two or more.{tail}"
