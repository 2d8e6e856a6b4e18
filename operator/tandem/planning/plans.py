"""The values of planning: the request, and the plan.

A *run* becomes one output segment; its *bins* become Spark tasks. A plan only proposes names for
outputs (`SegmentRun.output`); the commit loop assigns them (`tandem.timeline.names`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tandem.intervals import TimeInterval
from tandem.spec.compaction import CompactionTemplate, CompactionType, LayoutStrategy, Spanning
from tandem.timeline import lineage
from tandem.timeline.lineage import Lineage
from tandem.timeline.segment_files import SegmentFile
from tandem.timeline.segments import layout_label

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class CompactionRequest:
    """A TableCompaction's spec as planning needs it; sizes in bytes.

    Attributes:
        thresholds: how many segments of level 0, and of level 1, make a minor compaction.
        preserve: how many of the latest segments are left out (`Minor`, `Major`).
        max_segment_size: `Minor` skips segments of this size or more; None for no limit.
        target_segment_size: `Major` collects segments to less than this in total.
        chunks: `SemiMajor`: names of chunks; () for all.
        cuts: `SemiMajor` takes from files that span a chunk and others only the rows of the chunks.
        segments: `Custom`: names of segments.
        selected: `Custom`: paths of the files that a `where` selects; exclusive with `segments`.
        layout, layout_columns: the order in which rows are written (`layout`).
        among: `Minor` considers these segments only; None for all.
        adjacent_only: `Minor` plans only runs of adjacent loads (`adjacency`).
        skip_offset_ms: files this close to the newest data are left out (`skip_offset`).
        excluded: segments that another operation holds now. The plan ignores them: its names, sizes
            and minimum counts are right for the others (I-28).
        resource: the resource of the request, for messages: `TableCompaction/nightly`.
    """

    type: CompactionType
    thresholds: tuple[int, ...] = (4, 3)
    preserve: int = 0
    max_segment_size: int | None = None
    target_segment_size: int = GIB
    chunks: tuple[str, ...] = ()
    cuts: bool = False
    segments: tuple[str, ...] = ()
    selected: frozenset[str] | None = None
    target_file_size: int = 128 * MIB
    layout: LayoutStrategy = LayoutStrategy.BIN_PACK
    layout_columns: tuple[str, ...] = ()
    among: frozenset[str] | None = None
    adjacent_only: bool = False
    skip_offset_ms: int = 0
    excluded: frozenset[str] = frozenset()
    resource: str = ""

    @classmethod
    def of(
        cls,
        spec: CompactionTemplate,
        *,
        selected: frozenset[str] | None = None,
        excluded: frozenset[str] = frozenset(),
        resource: str = "",
    ) -> CompactionRequest:
        """The request of a resource. `selected` are the files that its `custom.where` selects; the
        caller determines them, since that needs the table's schema."""
        minor, custom = spec.minor_options, spec.custom
        return cls(
            type=spec.type,
            thresholds=minor.thresholds,
            preserve=minor.preserve if spec.type is CompactionType.MINOR else 0,
            max_segment_size=minor.max_segment_size,
            target_segment_size=spec.major_options.target_segment_size,
            chunks=spec.semi_major_options.chunks or (),
            cuts=spec.semi_major_options.spanning is Spanning.CUT,
            segments=(custom.segments or ()) if custom else (),
            selected=selected,
            target_file_size=spec.target_file_size,
            layout=spec.layout.strategy,
            layout_columns=spec.layout.columns,
            among=frozenset(minor.segments) if minor.segments is not None else None,
            adjacent_only=bool(minor.adjacent_only),
            skip_offset_ms=spec.skip_offset_from_latest or 0,
            excluded=excluded,
            resource=resource,
        )

    @property
    def layout_label(self) -> str:
        """The value of the outputs' layout tag; "" if rows keep their order."""
        if self.layout is LayoutStrategy.BIN_PACK:
            return ""
        return layout_label(self.layout.value, self.layout_columns)


@dataclass(frozen=True, slots=True)
class MergeStep:
    """One iteration of CarbonData's loop: exactly these segments in this order become `output`.

    `output` is CarbonData's name if it has one. After a foreign first input, whose output gets a
    new number in the commit loop, it is a stand-in: the first input's name, `.` and the level.
    """

    inputs: tuple[str, ...]
    output: str
    level: int


@dataclass(frozen=True, slots=True)
class Bin:
    """Files of one partition (and one chunk, with a time column) that are rewritten together, in
    segment order. `live_bytes` is an estimate."""

    files: Sequence[SegmentFile]
    partition: tuple[tuple[str, str | None], ...]
    live_bytes: int
    expected_files: int


@dataclass(frozen=True, slots=True)
class SegmentRun:
    """Segments that are rewritten as one.

    Attributes:
        segments: names of the existing inputs, in order. The first determines output name, level
            and sequence.
        output: the proposed name, None if only the commit loop can determine it.
        sequence: order key of the output: that of its first input.
        steps: the steps of CarbonData that a minor run combines; else one.
        interval: the interval of the inputs; None without a time column or if unknown.
        major: the output is marked as CarbonData's majorCompacted: minor plans skip it.
    """

    segments: tuple[str, ...]
    output: str | None
    level: int
    sequence: int
    steps: tuple[MergeStep, ...]
    bins: tuple[Bin, ...]
    interval: TimeInterval | None = None
    major: bool = False

    @property
    def files(self) -> tuple[SegmentFile, ...]:
        return tuple(file for each in self.bins for file in each.files)

    @property
    def input_bytes(self) -> int:
        return sum(file.size for file in self.files)

    def parents(self) -> Lineage:
        """The lineage of its output."""
        return lineage.of(self.segments)


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """Runs that share no file. Without runs, `nothing` is one sentence that says why.

    All bytes are of files as stored; `expected_*` are estimates.
    """

    runs: tuple[SegmentRun, ...]
    nothing: str = ""

    @property
    def segments(self) -> tuple[str, ...]:
        """Names of all inputs, in order, without duplicates: the resources to lock."""
        return tuple(dict.fromkeys(name for run in self.runs for name in run.segments))

    @property
    def files(self) -> tuple[SegmentFile, ...]:
        return tuple(file for run in self.runs for file in run.files)

    @property
    def input_bytes(self) -> int:
        return sum(run.input_bytes for run in self.runs)

    @property
    def expected_files(self) -> int:
        return sum(each.expected_files for run in self.runs for each in run.bins)

    @property
    def expected_bytes(self) -> int:
        return sum(each.live_bytes for run in self.runs for each in run.bins)
