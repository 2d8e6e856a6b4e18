"""Builds runs from chosen parts of segments. Shared by all kinds of compaction."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from tandem.planning.bins import pack
from tandem.planning.model import Bin, MergeStep, SegmentRun
from tandem.timeline.chunks import TimeInterval
from tandem.timeline.names import derived_name
from tandem.timeline.segment_files import SegmentFile, SegmentFiles
from tandem.timeline.segments import Segment


@dataclass(frozen=True, slots=True)
class SegmentPart:
    """Some or all files of one segment: the part that a plan takes."""

    segment: Segment
    files: Sequence[SegmentFile]

    @classmethod
    def whole(cls, segment: Segment) -> SegmentPart:
        return cls(segment, segment.files)

    @property
    def name(self) -> str:
        return self.segment.name

    @property
    def partial(self) -> bool:
        return len(self.files) < len(self.segment.files)

    @property
    def size_bytes(self) -> int:
        if isinstance(self.files, SegmentFiles):
            return self.files.size_bytes
        return sum(file.size for file in self.files)

    @property
    def live_bytes(self) -> int:
        if isinstance(self.files, SegmentFiles):
            return int(self.files.live_bytes.sum())
        return sum(file.live_bytes for file in self.files)


def build_run(
    parts: Sequence[SegmentPart],
    target_file_size: int,
    *,
    level: int | None = None,
    steps: tuple[MergeStep, ...] = (),
    bins: tuple[Bin, ...] = (),
    major: bool = False,
) -> SegmentRun:
    """The run that merges `parts` (in segment order, at least one).

    `level` is by default one more than that of the first part, `steps` the run as a single step,
    `bins` the packed files; a caller that packed them already passes them.
    """
    first = parts[0].segment
    level = first.level + 1 if level is None else level
    names = tuple(part.name for part in parts)
    files = files_of(parts)
    return SegmentRun(
        segments=names,
        partial=frozenset(part.name for part in parts if part.partial),
        output=derived_name(first.name, level),
        level=level,
        sequence=first.sequence,
        steps=steps or (MergeStep(names, step_name(first.name, level), level),),
        bins=bins or pack(files, target_file_size),
        interval=_hull(files),
        major=major,
    )


def step_name(first: str, level: int) -> str:
    """The name of a step's output within a plan: see `MergeStep.output`."""
    return derived_name(first, level) or f"{first}.{level}"


def proposed_names(runs: Iterable[SegmentRun], live: Iterable[Segment]) -> Iterator[SegmentRun]:
    """The runs, with `output` only if the commit loop would assign that name at this version."""
    used = {segment.name for segment in live}
    for run in runs:
        if run.output is None or run.output in used:
            yield replace(run, output=None)
        else:
            used.add(run.output)
            yield run


def files_of(parts: Iterable[SegmentPart]) -> SegmentFiles:
    """The files of all parts, of which there is at least one."""
    found = SegmentFiles.of(part.files for part in parts)
    assert found is not None
    return found


def _hull(files: SegmentFiles) -> TimeInterval | None:
    intervals = [files.columns.intervals[code] for code in set(files.interval_codes.tolist())]
    known = [time for time in intervals if time is not None]
    if not known or len(known) < len(intervals):
        return None
    return TimeInterval(min(i.start_ms for i in known), max(i.end_ms for i in known))
