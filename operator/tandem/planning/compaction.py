"""The plan of a compaction: the entry point of this package."""

from __future__ import annotations

from collections.abc import Sequence

from tandem.planning.custom import check_selection, custom_runs
from tandem.planning.major import major_runs
from tandem.planning.minor import level_thresholds, minor_runs
from tandem.planning.model import CompactionPlan, CompactionRequest
from tandem.planning.runs import proposed_names
from tandem.planning.semi_major import chosen_files, semi_major_runs
from tandem.planning.skip_offset import too_young
from tandem.spec.compaction import CompactionType
from tandem.spec.fields import format_duration
from tandem.spec.table import Granularity
from tandem.timeline.segments import Segment


def plan_compaction(
    segments: Sequence[Segment],
    request: CompactionRequest,
    *,
    granularity: Granularity | None = None,
    past: Sequence[Segment] = (),
) -> CompactionPlan:
    """What a compaction would rewrite, deterministically.

    Args:
        segments: the live segments at the read version, in order (`timeline.segments`), built
            with the time column that `granularity` belongs to.
        request: the compaction to plan.
        granularity: that of the LakeTable's `time`; None if it has none.
        past: segments that are no longer live (`timeline.history`), for messages.

    Raises:
        InvalidSpec: contradictory or impossible requests, unknown chunks.
        UnknownSegment: `Custom` names a segment that is not live.
    """
    check_selection(request)
    young = too_young(segments, request.skip_offset_ms, granularity)
    if request.type is CompactionType.MINOR:
        runs = minor_runs(segments, request, timed=granularity is not None, young=young)
    elif request.type is CompactionType.SEMI_MAJOR:
        runs = semi_major_runs(segments, request, granularity, young=young)
    elif request.type is CompactionType.MAJOR:
        runs = major_runs(segments, request, young=young)
    else:
        runs = custom_runs(segments, request, past, young=young)
    if not runs:
        why = _why_nothing(segments, request, granularity)
        return CompactionPlan((), why + _left_young(young, request))
    return CompactionPlan(tuple(proposed_names(runs, segments)))


def _left_young(young: frozenset[str], request: CompactionRequest) -> str:
    if not young:
        return ""
    offset = format_duration(request.skip_offset_ms)
    files = f"{len(young)} file{'s' if len(young) > 1 else ''}"
    return f" {files} within {offset} of the newest data (skipOffsetFromLatest) left alone."


def _why_nothing(
    segments: Sequence[Segment], request: CompactionRequest, granularity: Granularity | None
) -> str:
    if not segments:
        return "The table has no segments."
    held = sorted(request.excluded & {segment.name for segment in segments})
    tail = f" Held by other operations: {', '.join(held)}." if held else ""
    count = f"{len(segments)} segment{'s' if len(segments) > 1 else ''}"
    label = request.layout_label
    gain = "another order" if label else "fewer files"
    if request.type is CompactionType.MINOR:
        wanted = " or ".join(
            f"{number} of level {level}"
            for level, number in enumerate(level_thresholds(request.thresholds))
            if number
        )
        return (
            f"None of {count} make a minor compaction: it takes {wanted} that are not preserved, "
            f"too large or compacted by Major, and {gain} in the end.{tail}"
        )
    if request.type is CompactionType.MAJOR:
        return (
            f"Of {count} no two neighbours stay below {request.target_segment_size:,} bytes "
            f"together and would leave {gain}.{tail}"
        )
    if request.type is CompactionType.SEMI_MAJOR:
        if not chosen_files(segments, request, granularity):
            # Not an error: a chunk may be named before its data arrives. But a typo must show.
            return f"No file lies in {', '.join(request.chunks)}.{tail}"
        return f"The files of the {'chosen ' if request.chunks else ''}chunks are as asked.{tail}"
    if label:
        return f"What was chosen lies in the order {label} already.{tail}"
    if request.selected is not None:
        return f"The filter selects no files that would become fewer.{tail}"
    return f"One segment alone has nothing to be merged with: choose two or more.{tail}"
