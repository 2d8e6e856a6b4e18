"""What automatic compaction asks of a table, kept from version to version.

To list, sort and plan all segments again after each commit costs seconds in a large table. Here a
commit costs the chunks that it changed: the runs of all other chunks are those of the version
before. The answers are those of `TableFacts` on the list of all segments.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from tandem.intervals import ALWAYS, IntervalSet, TimeInterval
from tandem.planning.auto.child_compactions import TableId
from tandem.planning.auto.live_index import LiveIndex
from tandem.planning.auto.table_facts import MinorRuns, TableFacts
from tandem.planning.auto.uncompacted import UncompactedChunk, uncompacted_chunks
from tandem.planning.compaction import why_no_minor
from tandem.planning.minor import minor_runs
from tandem.planning.model import CompactionRequest
from tandem.spec.table import Granularity
from tandem.timeline.chunks import TimeColumn, is_one_chunk
from tandem.timeline.segments import segments

_Group = tuple[TimeInterval, ...]
"""The intervals of files that files link, in order of time."""


class IndexedTable:
    """An `AutomaticTable` with a time column and several chunks. Not safe for several threads.

    Args:
        files: the working set of a version, as `Snapshot.files`.
    """

    def __init__(self, id_: TableId, files: pa.Table, time: TimeColumn) -> None:
        assert time.granularity is not Granularity.ALL
        self._id = id_
        self.live = LiveIndex(files, time)
        self._minor = _MinorCache()
        self._groups = _GroupCache()

    @property
    def id(self) -> TableId:
        return self._id

    @property
    def granularity(self) -> Granularity:
        return self.live.time.granularity

    def follow(self, files: pa.Table, changed: Collection[str], added: pa.Table) -> None:
        """Go on to a later version: as `LiveIndex.follow`."""
        chunks = self.live.follow(files, changed, added)
        self._minor.stale |= chunks
        self._groups.stale |= chunks

    def minor_runs(self, request: CompactionRequest) -> MinorRuns:
        if request.adjacent_only:
            # Whether loads are adjacent depends on files of other chunks, too.
            live = segments(self.live.files, self.live.time)
            return TableFacts(self.id, live, self.granularity).minor_runs(request)
        out = request.excluded & self.live.names
        if request.preserve:
            out |= self.live.newest(request.preserve)
        limit_ms = self._limit_ms(request)
        found = self._minor.runs(self.live, request, out)
        runs = [run for chunk in sorted(found) if chunk.end_ms <= limit_ms for run in found[chunk]]
        if runs:
            return MinorRuns(runs)
        held = sorted(request.excluded & self.live.names)
        young = self.live.count_from(limit_ms) if request.skip_offset_ms > 0 else 0
        return MinorRuns((), why_no_minor(len(self.live.names), held, young, request))

    def chunks(self, request: CompactionRequest) -> Sequence[UncompactedChunk]:
        limit_ms = self._limit_ms(request)
        old = (each for each in self.live.timed_chunks if each.end_ms <= limit_ms)
        return self._groups.uncompacted(self.live, request, _linked(old))

    def times_of(self, names: Collection[str]) -> IntervalSet:
        return IntervalSet(chunk for name in names for chunk in self.live.chunks_of(name))

    def _limit_ms(self, request: CompactionRequest) -> int:
        """Chunks that end later are left out."""
        if request.skip_offset_ms <= 0:
            return ALWAYS.end_ms
        ends = (each.end_ms for each in self.live.timed_chunks)
        return max(ends, default=0) - request.skip_offset_ms


class _MinorCache:
    """The runs of each chunk: which have nothing in common with those of another one."""

    def __init__(self) -> None:
        self.stale: set[TimeInterval] = set()
        self._request: CompactionRequest | None = None
        self._out: frozenset[str] = frozenset()
        self._runs: dict[TimeInterval, list[tuple[str, ...]]] = {}

    def runs(
        self, live: LiveIndex, request: CompactionRequest, out: frozenset[str]
    ) -> dict[TimeInterval, list[tuple[str, ...]]]:
        """The runs of each chunk that has some, whatever its age, without the segments `out`."""
        request = replace(request, excluded=frozenset(), preserve=0, skip_offset_ms=0)
        if request != self._request:
            self._request, self._runs, self.stale = request, {}, set(live.chunks)
        for name in out ^ self._out:
            self.stale |= live.chunks_of(name)
        self._out = out
        granularity = live.time.granularity
        stale = {each for each in self.stale if is_one_chunk(each, granularity)}
        self.stale = set()
        for chunk in stale:
            self._runs.pop(chunk, None)
        for run in minor_runs(live.segments_in(stale), replace(request, excluded=out), timed=True):
            # Of other chunks only the files of the same segments were planned.
            if run.interval in stale:
                self._runs.setdefault(run.interval, []).append(run.segments)
        return self._runs


class _GroupCache:
    """What is uncompacted in each group of linked chunks."""

    def __init__(self) -> None:
        self.stale: set[TimeInterval] = set()
        self._request: CompactionRequest | None = None
        self._known: dict[_Group, UncompactedChunk | None] = {}

    def uncompacted(
        self, live: LiveIndex, request: CompactionRequest, groups: Sequence[_Group]
    ) -> list[UncompactedChunk]:
        request = replace(request, skip_offset_ms=0)
        if request != self._request:
            self._request, self._known = request, {}
        known = {
            group: self._known[group]
            for group in groups
            if group in self._known and self.stale.isdisjoint(group)
        }
        self.stale = set()
        missing = [group for group in groups if group not in known]
        wanted = {chunk for group in missing for chunk in group}
        whole = live.segments_in(wanted)
        files = whole.files
        chosen = np.array([each in wanted for each in files.columns.intervals], np.bool_)
        found = uncompacted_chunks(whole, files.where(chosen[files.interval_codes]), request)
        by_hull = {each.interval: each for each in found}
        for group in missing:
            known[group] = by_hull.get(_hull(group))
        self._known = known
        return [each for group in groups if (each := known[group]) is not None]


def _linked(chunks: Iterable[TimeInterval]) -> list[_Group]:
    """The groups of chunks, in order of time."""
    groups: list[list[TimeInterval]] = []
    end_ms = 0
    for each in sorted(chunks, key=lambda each: (each.start_ms, each.end_ms)):
        if groups and each.start_ms < end_ms:
            groups[-1].append(each)
            end_ms = max(end_ms, each.end_ms)
        else:
            groups.append([each])
            end_ms = each.end_ms
    return list(map(tuple, groups))


def _hull(group: _Group) -> TimeInterval:
    return TimeInterval(group[0].start_ms, max(each.end_ms for each in group))
