"""Major compaction: one contiguous run of segments up to a size.

CarbonData's rule (`identifySegmentsToBeMergedBasedOnSize`): collect segments in order while their
sum stays below the target. A single segment over the target ends the run if it has two or more
segments, else collecting starts again after it; a segment that would make the sum too big ends the
run if it has two or more, else collecting starts again with it. One pass, one run: segments loaded
meanwhile wait for the next one. The output is marked `Major`.

With a layout, segments that CarbonData would leave alone are runs of one: also a single segment is
rewritten to be sorted, whatever its size, unless its rows are in that order already.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from tandem.distinct import BoolArray, IntArray
from tandem.planning.layout import bins_of, may_gain, rewrite_criterion
from tandem.planning.model import CompactionRequest, SegmentRun
from tandem.planning.runs import build_run
from tandem.timeline.segments import Segments


def major_runs(
    segments: Segments,
    request: CompactionRequest,
    *,
    young: frozenset[str] = frozenset(),
) -> list[SegmentRun]:
    """The first contiguous run that is worth rewriting, or none. A segment with one of the files
    in `young` is left out."""
    kept = segments[: max(len(segments) - request.preserve, 0)]
    excluded = kept.named(request.excluded)
    files = kept.files
    if young:
        excluded |= kept.having(files.where(files.among(young)))
    sorts = bool(request.layout_label)
    target = request.target_segment_size
    spans = list(size_runs(kept.sizes, target, excluded, singles=sorts))
    runs = np.full(len(segments.columns.starts), -1, np.int64)
    for number, (start, stop) in enumerate(spans):
        runs[kept.codes[start:stop]] = number
    for _, chosen in may_gain(files, runs[files.segments], request):
        bins = bins_of(chosen, request)
        if any(map(rewrite_criterion(request), bins)):
            return [build_run(segments, chosen, bins, major=True)]
    return []


def size_runs(
    sizes: IntArray, target: int, excluded: BoolArray, *, singles: bool = False
) -> Iterator[tuple[int, int]]:
    """Contiguous runs of two or more segments (start, stop), in order; CarbonData takes the first.

    An excluded segment breaks contiguity like one that is too big.

    Args:
        singles: a segment without a neighbour to join is a run, too, even one that is too big.
    """
    least = 1 if singles else 2
    start = total = 0
    for at, (size, out) in enumerate(zip(sizes.tolist(), excluded.tolist(), strict=True)):
        if size > target or out:
            if at - start >= least:
                yield start, at
            if singles and not out:
                yield at, at + 1
            start, total = at + 1, 0
        elif total + size < target:
            total += size
        else:
            if at - start >= least:
                yield start, at
            start, total = at, size
    if len(sizes) - start >= least:
        yield start, len(sizes)
