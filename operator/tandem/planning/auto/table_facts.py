"""What automatic compaction asks of a table, answered from the list of all of its segments."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from tandem.intervals import ALWAYS, IntervalSet
from tandem.planning.auto.child_compactions import TableId
from tandem.planning.auto.uncompacted import UncompactedChunk, uncompacted_chunks
from tandem.planning.compaction import plan_compaction
from tandem.planning.plans import CompactionRequest
from tandem.planning.skip_offset import skipped_files
from tandem.spec.table import Granularity
from tandem.timeline.segments import Segment, Segments


@dataclass(frozen=True, slots=True)
class MinorRuns:
    """The runs of a minor compaction, as the segments of each, in order. Without runs, `nothing`
    says why."""

    runs: Sequence[tuple[str, ...]]
    nothing: str = ""


class AutomaticTable(Protocol):
    """A table at the version last seen."""

    @property
    def id(self) -> TableId: ...

    @property
    def granularity(self) -> Granularity | None:
        """That of its time chunks; None without a time column."""
        ...

    def minor_runs(self, request: CompactionRequest) -> MinorRuns:
        """What a minor compaction would rewrite."""
        ...

    def chunks(self, request: CompactionRequest) -> Sequence[UncompactedChunk]:
        """What a semi-major compaction would rewrite, in order of time."""
        ...

    def times_of(self, names: Collection[str]) -> IntervalSet:
        """The chunks of some segments; all of time if one of them has an unknown time. Names
        without a live segment are ignored."""
        ...


@dataclass(frozen=True, slots=True)
class TableFacts:
    """A table by its live segments in order, built with the time column that `granularity` belongs
    to."""

    id: TableId
    segments: Sequence[Segment]
    granularity: Granularity | None = None

    def minor_runs(self, request: CompactionRequest) -> MinorRuns:
        plan = plan_compaction(self.segments, request, granularity=self.granularity)
        return MinorRuns([run.segments for run in plan.runs], plan.nothing)

    def chunks(self, request: CompactionRequest) -> Sequence[UncompactedChunk]:
        live = Segments.of(self.segments)
        young = skipped_files(live, request.skip_offset_ms, self.granularity)
        files = live.files
        return uncompacted_chunks(live, files.where(~files.among(young)), request)

    def times_of(self, names: Collection[str]) -> IntervalSet:
        live = Segments.of(self.segments)
        files = live.where(live.named(names)).files
        intervals = (files.columns.intervals[code] for code in set(files.interval_codes.tolist()))
        return IntervalSet(ALWAYS if each is None else each for each in intervals)
