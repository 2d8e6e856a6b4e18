"""Major compaction: one contiguous run of segments up to a size.

CarbonData's rule (`identifySegmentsToBeMergedBasedOnSize`): collect segments in order while their
sum stays below the target. A single segment over the target ends the run if it has two or more
segments, else collecting starts again after it; a segment that would make the sum too big ends the
run if it has two or more, else collecting starts again with it. One pass, one run: segments loaded
meanwhile wait for the next one. The output is marked `Major`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tandem.planning.layout import bins_of, usefulness
from tandem.planning.model import CompactionRequest, SegmentRun
from tandem.planning.runs import SegmentPart, build_run, files_of
from tandem.planning.skip_offset import has_any
from tandem.timeline.segments import Segment


def major_runs(
    segments: Sequence[Segment],
    request: CompactionRequest,
    *,
    young: frozenset[str] = frozenset(),
) -> list[SegmentRun]:
    """The first contiguous run that is worth rewriting, or none. A segment with one of the files
    in `young` is left out."""
    kept = segments[: max(len(segments) - request.preserve, 0)]
    excluded = request.excluded
    if young:
        excluded |= {s.name for s in kept if has_any(s, young)}
    for chosen in size_runs(kept, request.target_segment_size, excluded):
        parts = [SegmentPart.whole(segment) for segment in chosen]
        bins = bins_of(files_of(parts), request)
        run = build_run(parts, request.target_file_size, bins=bins, major=True)
        if any(map(usefulness(request), run.bins)):
            return [run]
    return []


def size_runs(
    segments: Sequence[Segment], target: int, excluded: frozenset[str] = frozenset()
) -> Iterator[list[Segment]]:
    """Contiguous runs of two or more segments, in order; CarbonData takes the first.

    An excluded segment breaks contiguity like one that is too big.
    """
    chosen: list[Segment] = []
    total = 0
    for segment in segments:
        if segment.size_bytes > target or segment.name in excluded:
            if len(chosen) > 1:
                yield chosen
            chosen, total = [], 0
        elif total + segment.size_bytes < target:
            chosen.append(segment)
            total += segment.size_bytes
        else:
            if len(chosen) > 1:
                yield chosen
            chosen, total = [segment], segment.size_bytes
    if len(chosen) > 1:
        yield chosen
