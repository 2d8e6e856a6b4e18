"""The plan of a segment rewrite: which files of the named segments are rewritten.

Every file is a bin of its own and becomes one file of the same segment, so a plan never moves rows
between files or segments, and keeps the order of segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tandem.planning.major import require_live
from tandem.planning.plans import Bin, partition_of
from tandem.spec.segment_rewrite import SegmentRewriteSpec
from tandem.timeline.segment_files import SegmentFile
from tandem.timeline.segments import Segment, Segments

_SHOWN = 5
"""Names in a message."""


@dataclass(frozen=True, slots=True)
class SegmentRewriteRequest:
    """A SegmentRewrite's spec as planning needs it.

    Attributes:
        segments: names, as in the spec.
        every_file: whether the request concerns all files; else only those with
            deleted rows are taken.
        planned_before: whether an earlier plan of the same operation found all of them live: a
            segment that is no longer live was rewritten by another operation, and not misspelled.
        resource: the resource of the request, for messages: `SegmentRewrite/purge`.
    """

    segments: tuple[str, ...]
    every_file: bool = False
    resource: str = ""
    planned_before: bool = False

    @classmethod
    def of(
        cls, spec: SegmentRewriteSpec, *, resource: str = "", planned_before: bool = False
    ) -> SegmentRewriteRequest:
        rewrite = spec.rewrite
        filters = rewrite.add_bloom_filters is not None
        every_file = rewrite.recompress is not None or bool(rewrite.sort_by) or filters
        return cls(spec.segments, every_file, resource, planned_before)


@dataclass(frozen=True, slots=True)
class SegmentPart:
    """Some or all files of one segment: the part that a plan takes."""

    segment: Segment
    files: Sequence[SegmentFile]

    @property
    def name(self) -> str:
        return self.segment.name

    @property
    def size_bytes(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def live_bytes(self) -> int:
        return sum(file.live_bytes for file in self.files)


@dataclass(frozen=True, slots=True)
class SegmentRewritePlan:
    """`parts` are the files taken of each segment, in table order. Without parts, `nothing` is one
    sentence that says why, and `superseded`: all named segments are gone since an earlier plan.
    All bytes are of files as stored; `expected_*` are estimates."""

    parts: tuple[SegmentPart, ...]
    nothing: str = ""
    superseded: bool = False

    @property
    def segments(self) -> tuple[str, ...]:
        """Names of the segments of which files are taken: the resources to lock."""
        return tuple(part.name for part in self.parts)

    @property
    def files(self) -> tuple[SegmentFile, ...]:
        return tuple(file for part in self.parts for file in part.files)

    @property
    def bins(self) -> tuple[Bin, ...]:
        return tuple(_bin_of(file) for file in self.files)

    @property
    def input_bytes(self) -> int:
        return sum(part.size_bytes for part in self.parts)

    @property
    def expected_files(self) -> int:
        return sum(each.expected_files for each in self.bins)

    @property
    def expected_bytes(self) -> int:
        return sum(part.live_bytes for part in self.parts)

    @property
    def steps(self) -> tuple[str, ...]:
        """The files taken, in words: `7: 1 of 3 files, 12 deleted rows`."""
        return tuple(_step(part) for part in self.parts)


def plan_segment_rewrite(
    segments: Sequence[Segment],
    request: SegmentRewriteRequest,
    past: Sequence[Segment] = (),
) -> SegmentRewritePlan:
    """What a segment rewrite would rewrite, deterministically.

    Args:
        segments: the live segments at the read version, in order (`timeline.segments`).
        past: segments that are no longer live (`timeline.history`), for the message about a named
            one.

    Raises:
        UnknownSegment: a name is not that of a live segment.
    """
    live = Segments.of(segments)
    wanted = set(request.segments)
    if request.planned_before:
        wanted &= live.among(wanted)
    else:
        require_live(request.segments, live, past, resource=request.resource, field="spec.segments")
    parts = tuple(
        SegmentPart(segment, files)
        for segment in live.where(live.named(wanted))
        if (files := tuple(f for f in segment.files if request.every_file or f.deleted))
    )
    if parts:
        return SegmentRewritePlan(parts)
    if not wanted:
        gone = f"Of {_named(request.segments)} no file is live: other operations rewrote them."
        return SegmentRewritePlan((), gone, superseded=True)
    return SegmentRewritePlan(
        (), f"No file of {_named(request.segments)} has deleted rows to purge."
    )


def _named(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"segment {names[0]}"
    more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
    return f"segments {', '.join(names[:_SHOWN])}{more}"


def _bin_of(file: SegmentFile) -> Bin:
    gone = bool(file.rows) and file.deleted >= (file.rows or 0)
    return Bin((file,), partition_of(file), file.live_bytes, 0 if gone else 1)


def _step(part: SegmentPart) -> str:
    taken, all_ = len(part.files), len(part.segment.files)
    deleted = sum(file.deleted for file in part.files)
    files = f"{taken} of {all_} file{'s' if all_ != 1 else ''}"
    rows = f", {deleted:,} deleted row{'s' if deleted != 1 else ''}" if deleted else ""
    return f"{part.name}: {files}{rows}"
