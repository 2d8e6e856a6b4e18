"""Plans of minor, semi-major and major compactions, made segment by segment and file by file: slow,
and simple enough to be read against CarbonData's rules. The model of `test_layout.py`."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tandem.intervals import TimeInterval
from tandem.planning.compaction import level_thresholds
from tandem.planning.layout import bins_of, rewrite_criterion
from tandem.planning.plans import (
    Bin,
    CompactionRequest,
    MergeStep,
    SegmentRun,
    by_chunk,
    by_partition,
    full_files,
    step_name,
)
from tandem.spec.compaction import CompactionType
from tandem.spec.table import Granularity
from tandem.timeline.names import derived_name
from tandem.timeline.segment_files import SegmentFile, SegmentFiles
from tandem.timeline.segments import Segment


@dataclass(frozen=True)
class Part:
    segment: Segment
    files: SegmentFiles

    @classmethod
    def of(cls, segment: Segment, keep: Callable[[SegmentFile], bool]) -> Part:
        assert isinstance(segment.files, SegmentFiles)
        mask = np.array([keep(file) for file in segment.files], np.bool_)
        return cls(segment, segment.files.where(mask))


@dataclass
class Node:
    """A segment of the simulation: an existing one (no steps), or one that steps made."""

    name: str
    level: int
    parts: list[tuple[int, Part]]
    steps: list[MergeStep]

    @property
    def size(self) -> int:
        if not self.steps:
            return sum(file.size for file in self.parts[0][1].files)
        return sum(file.live_bytes for _, part in self.parts for file in part.files)


def plan(
    segments: Sequence[Segment], request: CompactionRequest, granularity: Granularity | None
) -> list[SegmentRun]:
    young = _young(segments, request.skip_offset_ms, granularity)
    if request.type is CompactionType.MINOR:
        runs = _minor(segments, request, granularity is not None, young)
    elif request.type is CompactionType.MAJOR:
        runs = _major(segments, request, young)
    else:
        runs = _semi_major(segments, request, granularity, young)
    used = {segment.name for segment in segments}
    named: list[SegmentRun] = []
    for run in runs:
        if run.output in used:
            named.append(replace(run, output=None))
        else:
            used.add(run.output or "")
            named.append(run)
    return named


def _young(
    segments: Sequence[Segment], offset_ms: int, granularity: Granularity | None
) -> set[str]:
    if offset_ms <= 0 or not segments:
        return set()
    if granularity is None:
        newest = max(segment.sequence for segment in segments)
        recent = [s for s in segments if newest - s.sequence < offset_ms]
        return {file.path for segment in recent for file in segment.files}
    files = [file for segment in segments for file in segment.files]
    limit = max((f.interval.end_ms for f in files if f.interval is not None), default=0)
    return {f.path for f in files if f.interval is None or f.interval.end_ms > limit - offset_ms}


def _minor(
    segments: Sequence[Segment], request: CompactionRequest, timed: bool, young: set[str]
) -> list[SegmentRun]:
    kept = segments[: max(len(segments) - request.preserve, 0)]
    usable = [
        segment
        for segment in kept
        if segment.name not in request.excluded
        and not segment.major
        and segment.level < len(request.thresholds)
        and (request.among is None or segment.name in request.among)
    ]
    runs: list[SegmentRun] = []
    for parts in _chunks(usable, young) if timed else [_whole(usable, young)]:
        for node in _loop(parts, request):
            chosen = [part for _, part in node.parts]
            bins = bins_of(_files(chosen), request)
            if any(map(rewrite_criterion(request), bins)):
                runs.append(_run(chosen, bins, node.level, tuple(node.steps)))
    return runs


def _chunks(segments: Sequence[Segment], young: set[str]) -> Iterator[list[Part]]:
    files = [file for segment in segments for file in segment.files]
    for interval in sorted({file.interval for file in files if file.interval is not None}):

        def is_in(file: SegmentFile, interval: TimeInterval = interval) -> bool:
            return file.interval == interval and not file.spans and file.path not in young

        parts = [Part.of(segment, is_in) for segment in segments]
        yield [part for part in parts if part.files]


def _whole(segments: Sequence[Segment], young: set[str]) -> list[Part]:
    return [
        Part.of(segment, lambda _: True)
        for segment in segments
        if not any(file.path in young for file in segment.files)
    ]


def _loop(parts: Sequence[Part], request: CompactionRequest) -> list[Node]:
    thresholds = level_thresholds(request.thresholds)
    waiting: list[list[Node]] = [[] for _ in thresholds]
    done: list[Node] = []
    limit = request.max_segment_size

    def end() -> list[Node]:
        made = [node for node in [*done, *(n for each in waiting for n in each)] if node.steps]
        for node in made:
            node.parts.sort(key=lambda part: part[0])
        return sorted(made, key=lambda node: node.parts[0][0])

    for at, part in enumerate(parts):
        node = Node(part.segment.name, part.segment.level, [(at, part)], [])
        while True:
            if node.level >= len(thresholds) or (limit is not None and node.size >= limit):
                done.append(node)
                break
            level = waiting[node.level]
            bisect.insort(level, node, key=lambda each: each.parts[0][0])
            if len(level) != thresholds[node.level]:
                break
            if len(level) == 1:
                return end()
            waiting[node.level] = []
            node = _merged(level)
    return end()


def _merged(nodes: Sequence[Node]) -> Node:
    first, level = nodes[0], nodes[0].level + 1
    name = step_name(first.parts[0][1].segment.name, level)
    step = MergeStep(tuple(node.name for node in nodes), name, level)
    parts = [part for node in nodes for part in node.parts]
    return Node(name, level, parts, [*(s for node in nodes for s in node.steps), step])


def _major(
    segments: Sequence[Segment], request: CompactionRequest, young: set[str]
) -> list[SegmentRun]:
    kept = segments[: max(len(segments) - request.preserve, 0)]
    for chosen in _by_size(kept, request, young):
        parts = [Part.of(segment, lambda _: True) for segment in chosen]
        bins = bins_of(_files(parts), request)
        if any(map(rewrite_criterion(request), bins)):
            return [replace(_run(parts, bins), major=True)]
    return []


def _by_size(
    segments: Sequence[Segment], request: CompactionRequest, young: set[str]
) -> Iterator[list[Segment]]:
    """Runs of two segments or more; with a layout, a single one is sorted, too, however large."""
    target = request.target_segment_size
    least = 1 if request.layout_label else 2
    chosen: list[Segment] = []
    for segment in segments:
        out = segment.name in request.excluded or any(f.path in young for f in segment.files)
        total = sum(each.size_bytes for each in chosen)
        if not out and segment.size_bytes <= target and total + segment.size_bytes < target:
            chosen.append(segment)
            continue
        if len(chosen) >= least:
            yield chosen
        if least == 1 and not out and segment.size_bytes > target:
            yield [segment]
        chosen = [] if out or segment.size_bytes > target else [segment]
    if len(chosen) >= least:
        yield chosen


def _semi_major(
    segments: Sequence[Segment],
    request: CompactionRequest,
    granularity: Granularity | None,
    young: set[str],
) -> list[SegmentRun]:
    free = [segment for segment in segments if segment.name not in request.excluded]
    parts = [Part.of(segment, lambda file: file.path not in young) for segment in free]
    if not parts:
        return []
    files = _files(parts)
    groups = by_chunk(files) if granularity is not None else [g for _, g in by_partition(files)]
    runs: list[SegmentRun] = []
    for group in groups:
        loose = group
        if not request.layout_label:
            loose = group.where(~full_files(group, request.target_file_size))
        bins = tuple(filter(rewrite_criterion(request), bins_of(loose, request)))
        taken = {file.path for each in bins for file in each.files}
        chosen = [Part.of(segment, lambda file: file.path in taken) for segment in free]  # noqa: B023
        if bins:
            runs.append(_run([part for part in chosen if part.files], bins))
    return runs


def _files(parts: Iterable[Part]) -> SegmentFiles:
    found = SegmentFiles.of(part.files for part in parts)
    assert found is not None
    return found


def _run(
    parts: Sequence[Part],
    bins: tuple[Bin, ...],
    level: int | None = None,
    steps: tuple[MergeStep, ...] = (),
) -> SegmentRun:
    first = parts[0].segment
    level = first.level + 1 if level is None else level
    names = tuple(part.segment.name for part in parts)
    intervals = [file.interval for part in parts for file in part.files]
    known = [interval for interval in intervals if interval is not None]
    hull = None
    if known and len(known) == len(intervals):
        hull = TimeInterval(min(i.start_ms for i in known), max(i.end_ms for i in known))
    return SegmentRun(
        segments=names,
        output=derived_name(first.name, level),
        level=level,
        sequence=first.sequence,
        steps=steps or (MergeStep(names, step_name(first.name, level), level),),
        bins=bins,
        interval=hull,
    )
