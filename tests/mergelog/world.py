"""A base table and its log in memory, driven by the pure modules as the real writers drive them.

Each operation is split where other operations may come in between: an append looks and commits, a
log compaction and a merge plan and commit.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa

from mergelog import oracle
from mergelog.oracle import Append, Change, Event, Insert, Merge, Overwrite, Restore, Row, Update
from tandem.errors import BaseHistoryGap
from tandem.mergelog.boundaries import (
    BaseChange,
    MergedUpTo,
    RestoredTo,
    Unaffected,
    Voided,
    advance,
)
from tandem.mergelog.by_key import (
    Overlay,
    Records,
    concatenate,
    in_force,
    kept_by_stitching,
    winners,
)
from tandem.mergelog.versions import (
    Block,
    BlockLogState,
    BlockRun,
    all_blocks,
    applicable,
    small_runs,
)


@dataclass
class Content:
    """The records of a block, with their values."""

    records: Records
    values: list[str | None]


@dataclass(frozen=True)
class MergePlan:
    """What a merge read: a version of the log, then one of the base; and the blocks."""

    instant: int
    base: int
    rows: tuple[Row, ...]
    blocks: frozenset[str] = frozenset()


@dataclass
class World:
    ordered: bool
    changes: list[Change] = field(default_factory=lambda: [Insert(())])
    effects: list[BaseChange] = field(default_factory=lambda: [Unaffected()])
    bases: list[tuple[Row, ...]] = field(default_factory=lambda: [()])
    log: list[BlockLogState] = field(default_factory=lambda: [BlockLogState("base", 0)])
    contents: dict[str, Content] = field(default_factory=dict)
    appends: list[Append] = field(default_factory=list)
    made: int = 0
    now: int = 0
    base_times: list[int] = field(default_factory=lambda: [0])
    log_times: list[int] = field(default_factory=lambda: [0])
    block_times: dict[str, int] = field(default_factory=dict)
    deletes_kept: int = 0
    """How long a merged delete stays in force; 0 for ever."""
    archived: int = 0
    """The first version of the log that is left."""
    read: set[int] = field(default_factory=set)
    """Versions of the log that `state_at` has read."""

    # The base table

    @property
    def base(self) -> int:
        return len(self.bases) - 1

    def commit_base(self, change: Change, effect: BaseChange, rows: Sequence[Row]) -> None:
        self.changes.append(change)
        self.effects.append(effect)
        self.bases.append(tuple(rows))
        self.base_times.append(self.now)

    def insert(self, rows: tuple[Row, ...]) -> None:
        self.commit_base(Insert(rows), Unaffected(), self.bases[-1] + rows)

    def update(self, keys: frozenset[int], value: str | None) -> None:
        found = [
            row if row.key not in keys else replace(row, value=value or "")
            for row in self.bases[-1]
            if row.key not in keys or value is not None
        ]
        self.commit_base(Update(keys, value), Unaffected(), found)

    def rearrange(self) -> None:
        self.commit_base(oracle.Rearranged(), Unaffected(), self.bases[-1])

    def overwrite(self, rows: tuple[Row, ...]) -> None:
        self.commit_base(Overwrite(rows), Voided(), rows)

    def restore(self, version: int) -> None:
        self.commit_base(Restore(version), RestoredTo(version), self.bases[version])

    # The log

    def fold(self, instant: int, base: int) -> BlockLogState:
        """The state of a version of the log as of a base version that is not before its own."""
        state = self.log[instant]
        changes = self.effects[state.base + 1 : base + 1]
        return advance(state, changes, self.state_at, ordered=self.ordered)

    def prefix(self, instant: int) -> World:
        """The world of a reader that knows the log up to an instant."""
        found = copy(self)
        found.log = self.log[: instant + 1]
        return found

    def state_at(self, base: int) -> BlockLogState:
        """`LogHistory`: the newest version that looked no further, as of exactly `base`."""
        newest = self.newest_before(base)
        self.read.add(newest)
        return self.fold(newest, base)

    def newest_before(self, base: int) -> int:
        """Raises: BaseHistoryGap, if the versions of the log begin later."""
        found = max(i for i, state in enumerate(self.log) if state.base <= base)
        if found < self.archived:
            raise BaseHistoryGap("the log no longer has the state")
        return found

    def commit_log(self, state: BlockLogState) -> None:
        self.log.append(state)
        self.log_times.append(self.now)

    def append(self, events: tuple[Event, ...], looked_at: int, uploaded: str = "") -> None:
        """`uploaded` is the block of the same events, if they were uploaded before."""
        instant = len(self.log)
        state = self.fold(instant - 1, max(looked_at, self.log[-1].base))
        content = events_as_content(events, instant, self.ordered)
        if uploaded:
            # Its instant is the version that adds it.
            block = self._block(uploaded, instant, instant, content)
        else:
            block = self._new_block(instant, instant, content)
        self.commit_log(replace(state, live={**state.live, block.path: block}))
        self.appends.append(Append(instant, state.base, events))

    def upload(self, events: tuple[Event, ...]) -> str:
        """A block that is not committed."""
        return self._new_block(0, 0, events_as_content(events, 0, self.ordered)).path

    def advance_base(self) -> None:
        """The operator's own commit, which adds no rows."""
        self.commit_log(self.fold(len(self.log) - 1, self.base))

    def runs(self, strategy: str, taken: frozenset[str] = frozenset()) -> tuple[BlockRun, ...]:
        if strategy == "AllBlocks":
            return all_blocks(self.log[-1], taken)
        return small_runs(self.log[-1], min_blocks=2, max_bytes=6, taken=taken)

    def stitch(self, runs: tuple[BlockRun, ...], planned_at: int) -> bool:
        """Commit the runs of a plan that was made at a version of the log."""
        state = self.log[-1]
        live = dict(state.live)
        mark = self.log[planned_at].mark
        expired = self._expired(planned_at)
        paths = [[block.path for block in run.blocks] for run in runs]
        for at in applicable(state, paths, mark).applicable:
            run = runs[at]
            stitched = self._stitched(run, mark, expired)
            for block in run.blocks:
                del live[block.path]
            if stitched is not None:
                live[stitched.path] = stitched
        if live == dict(state.live):
            return False
        self.commit_log(replace(state, live=live))
        return True

    def _expired(self, planned_at: int) -> int:
        """The last instant whose deletes are no longer kept. As `LogCompactionKind`."""
        mark = self.log[planned_at].mark
        if not self.deletes_kept or mark < 0:
            return -1
        until = self.log_times[mark] - self.deletes_kept
        before = [at for at, time in enumerate(self.log_times) if time <= until]
        return min(self.log[before[-1]].mark, mark) if before else -1

    def _stitched(self, run: BlockRun, mark: int, expired: int) -> Block | None:
        parts = [self.contents[block.path] for block in run.blocks]
        records = concatenate([part.records for part in parts])
        values = [value for part in parts for value in part.values]
        kept = kept_by_stitching(records, mark, expired)
        if not len(kept):
            return None
        content = Content(records.take(kept), [values[at] for at in kept.tolist()])
        return self._new_block(run.first, run.last, content)

    def plan_merge(self) -> MergePlan:
        instant, base = len(self.log) - 1, self.base
        blocks = frozenset(self.fold(instant, base).live)
        return MergePlan(instant, base, tuple(self.merged_rows(instant, base)), blocks)

    def commit_merge(self, plan: MergePlan) -> bool:
        """Whether the plan still applies. The base rows may have changed meanwhile: the merge is
        evaluated by row, so the rows are those of the newest version."""
        start = self.log[plan.instant].base
        if any(not isinstance(e, Unaffected) for e in self.effects[start + 1 :]):
            return False
        rows = self.merged_rows(plan.instant, self.base)
        self.commit_base(Merge(plan.instant), MergedUpTo(plan.instant), rows)
        return True

    # Reading

    def merged_rows(self, instant: int, base: int) -> list[Row]:
        return self.rows_of(self.fold(instant, base), base)

    def rows_of(self, state: BlockLogState, base: int) -> list[Row]:
        """The view as the readers compute it."""
        rows = list(self.bases[base])
        parts = [self.contents[path] for path in state.live]
        if not parts:
            return rows
        records = concatenate([part.records for part in parts])
        values = [value for part in parts for value in part.values]
        used = in_force(records, state.mark)
        used = used[winners(records.take(used))]
        overlay = Overlay.of(records.take(used), state.mark)
        keys = pa.array([row.key for row in rows], pa.int64())
        order = pa.array([row.order for row in rows], pa.int64())
        compared = overlay.compare((keys,), order if self.ordered else None)
        overlay.beaten[compared.winners[compared.greater]] = True
        hidden = set(compared.rows[compared.hidden].tolist())
        shown = [row for at, row in enumerate(rows) if at not in hidden]
        for at in overlay.shown.tolist():
            value = values[used[at]]
            assert value is not None
            order_of = overlay.records.order
            found = _order(value) if order_of is None else order_of[at].as_py()
            shown.append(Row(overlay.records.keys[0][at].as_py(), found, value))
        return shown

    def view(self, version: int | None = None) -> list[Row]:
        base = self.base if version is None else version
        rows = self.merged_rows(self.newest_before(base), base)
        return sorted(rows, key=lambda row: (row.key, oracle.least(row.order), row.value))

    def _new_block(self, first: int, last: int, content: Content) -> Block:
        self.made += 1
        path = f"block-{self.made}"
        self.contents[path] = content
        self.block_times[path] = self.now
        return self._block(path, first, last, content)

    def _block(self, path: str, first: int, last: int, content: Content) -> Block:
        assert path in self.contents, f"{path} is gone"
        self.contents[path] = content
        deletes = int(np.count_nonzero(content.records.deleted))
        return Block(path, first, last, len(content.records), deletes)


def _order(value: str) -> int | None:
    """Without an ordering column the order is a column like any other; values carry it."""
    text = value.rsplit("@", 1)[1]
    return None if text == "None" else int(text)


def events_as_content(events: tuple[Event, ...], instant: int, ordered: bool) -> Content:
    records = Records(
        (pa.array([event.key for event in events], pa.int64()),),
        pa.array([event.order for event in events], pa.int64()) if ordered else None,
        np.full(len(events), instant, np.int64),
        np.array([event.value is None for event in events]),
    )
    return Content(records, [event.value for event in events])
