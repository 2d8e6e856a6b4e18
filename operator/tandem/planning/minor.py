"""Minor compaction: CarbonData's loop over levels, done at once.

CarbonData walks the segments in order; the first time that it has met 4 segments of level 0
it merges them into one of level 1, or 3 of level 1 into one of level 2, and begins again from
the start, until nothing qualifies (`identifySegmentsToBeMergedBasedOnSegCount`, 4,3 being its
`carbon.compaction.level.threshold`). So twelve loads are written twice: 0.1, 4.1, 8.1, then
0.2. The outcome depends on nothing but the list of segments, so we simulate the loop, keep
its steps, and write the data once (decision 0011).

Skipped as there: the latest `preserve` segments, segments of `max_segment_size` or more, of
level 2 or higher, and outputs of a major compaction. Skipped segments do not end a run; they
are simply not counted. With a time column the loop runs in each chunk by itself, on what each
segment has in that chunk; a file that spans chunks, or whose time is unknown, is not touched.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tandem.planning.bins import is_useful
from tandem.planning.model import CompactionRequest, Run, Step
from tandem.planning.runs import Part, build_run, step_name
from tandem.timeline.chunks import Interval
from tandem.timeline.segments import Segment

_HIGHEST_LEVEL = 1
"""Levels above are the business of the other kinds of compaction."""


def minor_runs(
    segments: Sequence[Segment], request: CompactionRequest, *, timed: bool
) -> list[Run]:
    """The runs of a minor compaction, chunk by chunk in order of time."""
    kept = segments[: max(len(segments) - request.preserve, 0)]
    usable = [segment for segment in kept if segment.name not in request.excluded]
    runs: list[Run] = []
    for parts in _chunks(usable) if timed else [[Part.whole(segment) for segment in usable]]:
        for node in _loop(parts, request):
            run = build_run(
                node.parts,
                request.target_file_size,
                level=node.level,
                steps=tuple(node.steps),
            )
            if any(map(is_useful, run.bins)):
                runs.append(run)
    return runs


def level_thresholds(thresholds: Sequence[int]) -> tuple[int, int]:
    """(segments of level 0, segments of level 1) that make a compaction; 0 for never.

    A second threshold of 1 would merge a segment with itself for ever; CarbonData takes it
    for 0, and so do we.
    """
    first, second = (*thresholds, 0, 0)[:2]
    return first, 0 if second == 1 else second


@dataclass(slots=True)
class _Node:
    """A segment of the simulation: one that exists (no steps), or one that steps made."""

    name: str
    level: int
    parts: list[Part]
    size: int
    steps: list[Step]


def _loop(parts: Sequence[Part], request: CompactionRequest) -> list[_Node]:
    """What CarbonData's loop leaves behind that did not exist before.

    One pass gives what its walks from the start give: whatever was walked over holds fewer
    than a threshold of either level (else it would have been merged), so after a merge the
    only list that can have become full is that of level 1.
    """
    unmerged_count, merged_count = level_thresholds(request.thresholds)
    unmerged: list[_Node] = []
    merged: list[_Node] = []
    done: list[_Node] = []
    position = {id(part): at for at, part in enumerate(parts)}

    def counts(node: _Node) -> bool:
        limit = request.max_segment_size
        return node.level <= _HIGHEST_LEVEL and (limit is None or node.size < limit)

    for part in parts:
        segment = part.segment
        node = _Node(segment.name, segment.level, [part], part.size_bytes, [])
        if segment.major or not counts(node):
            continue
        if node.level == 0:
            unmerged.append(node)
            if len(unmerged) != unmerged_count:
                continue
            if unmerged_count == 1:  # one segment is no compaction: there the loop ends
                break
            node = _merge(unmerged)
            unmerged = []
            if not counts(node):
                done.append(node)
                continue
        merged.append(node)
        merged.sort(key=lambda each: position[id(each.parts[0])])
        if len(merged) == merged_count:
            done.append(_merge(merged))
            merged = []
    done += [node for node in merged if node.steps]
    for node in done:
        # Steps of different levels may interleave; the data is laid out in segment order.
        node.parts.sort(key=lambda part: position[id(part)])
    return sorted(done, key=lambda node: position[id(node.parts[0])])


def _merge(nodes: Sequence[_Node]) -> _Node:
    first = nodes[0]
    level = first.level + 1
    # The stand-in name of a foreign chain stays that of its first file.
    name = step_name(first.parts[0].name, level)
    step = Step(tuple(node.name for node in nodes), name, level)
    return _Node(
        name=name,
        level=level,
        parts=[part for node in nodes for part in node.parts],
        size=sum(part.live_bytes for node in nodes for part in node.parts),
        steps=[*(step for node in nodes for step in node.steps), step],
    )


def _chunks(segments: Sequence[Segment]) -> Iterator[list[Part]]:
    """What each segment has in each time chunk, in order of time."""
    chunks: dict[Interval, list[Part]] = {}
    for segment in segments:
        mine: dict[Interval, list[int]] = {}
        for at, file in enumerate(segment.files):
            if file.interval is not None and not file.spans:
                mine.setdefault(file.interval, []).append(at)
        for interval, indexes in mine.items():
            files = tuple(segment.files[at] for at in indexes)
            chunks.setdefault(interval, []).append(Part(segment, files))
    for interval in sorted(chunks):
        yield chunks[interval]
