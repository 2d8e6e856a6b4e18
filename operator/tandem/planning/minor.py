"""Minor compaction: CarbonData's loop over levels, collapsed into one rewrite.

CarbonData walks the segments in order; as soon as it has passed 4 segments of level 0 it merges
them into one of level 1, or 3 of level 1 into one of level 2, and begins again from the start,
until nothing qualifies (`identifySegmentsToBeMergedBasedOnSegCount`, 4,3 being its
`carbon.compaction.level.threshold`). So twelve loads are written twice: 0.1, 4.1, 8.1, then 0.2.
The result depends only on the list of segments, so we simulate the loop, keep its steps, and write
the data once (decision 0011).

As in CarbonData, these are skipped: the latest `preserve` segments, segments of `max_segment_size`
or more, of level 2 or higher (of the number of thresholds, if there are more), and outputs of a
major compaction. We also skip what `skipOffsetFromLatest` protects. Skipped segments do not end a
run; they are simply not counted. With a time column the loop runs in each chunk separately, on the
files that each segment has in that chunk; a file that spans chunks, or whose time is unknown, is
not touched.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tandem.planning.layout import bins_of, usefulness
from tandem.planning.model import CompactionRequest, MergeStep, SegmentRun
from tandem.planning.runs import SegmentPart, build_run, files_of, step_name
from tandem.planning.skip_offset import has_any
from tandem.timeline.segment_files import SegmentFiles
from tandem.timeline.segments import Segment


def minor_runs(
    segments: Sequence[Segment],
    request: CompactionRequest,
    *,
    timed: bool,
    young: frozenset[str] = frozenset(),
) -> list[SegmentRun]:
    """The runs of a minor compaction, chunk by chunk in order of time. `young` are paths of files
    to leave out."""
    kept = segments[: max(len(segments) - request.preserve, 0)]
    usable = [segment for segment in kept if _is_usable(segment, request)]
    useful = usefulness(request)
    runs: list[SegmentRun] = []
    for parts in _chunks(usable, young) if timed else [_whole(usable, young)]:
        for node in _loop(parts, request):
            run = build_run(
                node.parts,
                request.target_file_size,
                level=node.level,
                steps=tuple(node.steps),
                bins=bins_of(files_of(node.parts), request),
            )
            if any(map(useful, run.bins)):
                runs.append(run)
    return runs


def _is_usable(segment: Segment, request: CompactionRequest) -> bool:
    if segment.name in request.excluded or segment.major:
        return False
    if segment.level >= len(request.thresholds):
        return False
    return request.among is None or segment.name in request.among


def level_thresholds(thresholds: Sequence[int]) -> tuple[int, ...]:
    """How many segments of level 0, 1, … make a compaction; 0 for never.

    CarbonData has two levels; further levels work the same way. A threshold of 1 above level 0
    would merge a segment with itself forever; CarbonData treats it as 0, and so do we.
    """
    return (*thresholds[:1], *(0 if count == 1 else count for count in thresholds[1:]))


@dataclass(slots=True)
class _Node:
    """A segment of the simulation: an existing one (no steps), or one that steps made."""

    name: str
    level: int
    parts: list[SegmentPart]
    steps: list[MergeStep]

    @property
    def size(self) -> int:
        if not self.steps:
            return self.parts[0].size_bytes
        return sum(part.live_bytes for part in self.parts)


def _loop(parts: Sequence[SegmentPart], request: CompactionRequest) -> list[_Node]:
    """The segments that CarbonData's loop leaves and that did not exist before.

    One pass gives the same result as CarbonData's walks from the start: the segments passed so far
    have fewer segments of each level than that level's threshold (else they would have been
    merged), so after a merge only the list of the next level can have become full.
    """
    thresholds = level_thresholds(request.thresholds)
    waiting: list[list[_Node]] = [[] for _ in thresholds]
    done: list[_Node] = []
    position = {id(part): at for at, part in enumerate(parts)}
    limit = request.max_segment_size

    for part in parts:
        segment = part.segment
        node: _Node | None = _Node(segment.name, segment.level, [part], [])
        while node is not None:
            if node.level >= len(thresholds) or (limit is not None and node.size >= limit):
                done.append(node)
                break
            level = waiting[node.level]
            bisect.insort(level, node, key=lambda each: position[id(each.parts[0])])
            if len(level) != thresholds[node.level]:
                break
            if len(level) == 1:  # one segment is no compaction: CarbonData's loop ends there
                return _finished([*done, *(n for nodes in waiting for n in nodes)], position)
            waiting[node.level] = []
            node = _merge(level)
    return _finished([*done, *(node for nodes in waiting for node in nodes)], position)


def _finished(nodes: Sequence[_Node], position: dict[int, int]) -> list[_Node]:
    made = [node for node in nodes if node.steps]
    for node in made:
        # Steps of different levels may interleave; the data is laid out in segment order.
        node.parts.sort(key=lambda part: position[id(part)])
    return sorted(made, key=lambda node: position[id(node.parts[0])])


def _merge(nodes: Sequence[_Node]) -> _Node:
    first = nodes[0]
    level = first.level + 1
    # The stand-in name of a chain that begins with a foreign file stays that of its first file.
    name = step_name(first.parts[0].name, level)
    step = MergeStep(tuple(node.name for node in nodes), name, level)
    return _Node(
        name=name,
        level=level,
        parts=[part for node in nodes for part in node.parts],
        steps=[*(step for node in nodes for step in node.steps), step],
    )


def _whole(segments: Sequence[Segment], young: frozenset[str]) -> list[SegmentPart]:
    return [
        SegmentPart.whole(segment)
        for segment in segments
        if not young or not has_any(segment, young)
    ]


def _chunks(segments: Sequence[Segment], young: frozenset[str]) -> Iterator[list[SegmentPart]]:
    """The files of each segment in each time chunk, in order of time."""
    files = SegmentFiles.of(segment.files for segment in segments)
    if files is None:
        return
    usable = (files.interval_codes >= 0) & ~files.spans
    files = files.where(usable & ~files.among(young) if young else usable)
    by_name = {segment.name: segment for segment in segments}
    for _, chunk in files.by_interval():
        yield [SegmentPart(by_name[name], mine) for name, mine in chunk.by_segment()]
