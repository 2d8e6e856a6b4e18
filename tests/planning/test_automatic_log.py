"""Automatic log compaction and merge: what is decided, in which order, and what is reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planning.automatic import FLIGHTS, HOUR, MINUTE, NOON, ended
from tandem.delta.actions import AddFile, Commit, CommitInfo
from tandem.mergelog.versions import (
    Block,
    BlockLogState,
    LogFacts,
    LogVersion,
    count_instants,
    log_version,
    small_runs,
    tags_of,
)
from tandem.planning.auto.facts import (
    LOG_COMPACTION_LINE,
    LOG_MERGE_LINE,
    AutoCompactionDecision,
    ChildCompaction,
    ChildState,
    backoff_ms,
)
from tandem.planning.auto.log import decide_log
from tandem.spec.loader import parse
from tandem.spec.log_compaction import MergeOnRead
from tandem.spec.resources import API_VERSION
from tandem.spec.status import AutoCompactionWait

SIZE = 100


def policy(**fields: Any) -> MergeOnRead:
    return MergeOnRead.model_validate({"keys": ["id"], **fields})


BOTH = policy(logCompaction={}, merge={})


@dataclass
class Log:
    """A log that is written instant by instant: versions, blocks and the mark."""

    now_ms: int = NOON
    mark: int = -1
    base: int = 0

    def __post_init__(self) -> None:
        self.versions = [LogVersion(0, self.now_ms)]
        self.live: dict[str, Block] = {}

    def _next(self, **fields: Any) -> int:
        version = len(self.versions)
        self.versions.append(LogVersion(version, self.now_ms, **fields))
        return version

    def append(self, count: int = 1, size: int = SIZE) -> Log:
        for _ in range(count):
            at = self._next(appends=True)
            self.live[f"b{at}"] = Block(f"b{at}", at, at, size)
        return self

    def record_base(self) -> Log:
        self._next()
        return self

    def compact(self, planned: int | None = None) -> Log:
        """A log compaction of all blocks up to the version that its plan read."""
        planned = len(self.versions) - 1 if planned is None else planned
        gone = [block for block in self.live.values() if block.last <= planned]
        for block in gone:
            del self.live[block.path]
        at = self._next(stitched=planned)
        first, last = min(b.first for b in gone), max(b.last for b in gone)
        self.live[f"s{at}"] = Block(f"s{at}", first, last, sum(b.size for b in gone))
        return self

    def merge(self, up_to: int | None = None) -> Log:
        """A merge that read the log at a version."""
        self.mark = len(self.versions) - 1 if up_to is None else up_to
        self.live = {path: b for path, b in self.live.items() if b.last > self.mark}
        self.base += 1
        return self

    @property
    def facts(self) -> LogFacts:
        state = BlockLogState("base", self.base, self.mark, dict(self.live))
        first = min((max(b.first, self.mark + 1) for b in state.unmerged), default=None)
        later = [v.time_ms for v in self.versions if first is not None and v.version >= first
                 and v.appends]  # fmt: skip
        return LogFacts(
            log_id="log",
            newest=len(self.versions) - 1,
            state=state,
            counts=count_instants(self.versions, self.mark),
            recorded=self.base,
            oldest_ms=later[0] if later else None,
        )


def decided(
    wanted: MergeOnRead,
    log: Log,
    children: Sequence[ChildState] = (),
    others: Sequence[str] = (),
    now_ms: int = NOON,
) -> AutoCompactionDecision:
    return decide_log(wanted, FLIGHTS, log.facts, children, others, now_ms)


def created(decision: AutoCompactionDecision) -> ChildCompaction:
    assert (decision.why, decision.hold) == ("", AutoCompactionWait.NOTHING)
    (child,) = decision.create
    # Whatever is created is something that the API server and the engine take.
    manifest = {"apiVersion": API_VERSION, "kind": child.kind, "metadata": {"name": child.name}}
    parse({**manifest, "spec": dict(child.spec)})
    assert len(child.name) <= 63
    return child


def running(child: ChildCompaction, now_ms: int = NOON, phase: str = "Running") -> ChildState:
    return ChildState(
        child.name, child.line, phase, created_ms=now_ms, retries=child.retries, kind=child.kind
    )


# L13


def test_L13_log_compaction_counts_from_the_last_merge_and_the_last_log_compaction() -> None:
    log = Log().append(4)
    assert (log.facts.counts.since_merge, log.facts.counts.since_compaction) == (4, 4)
    assert "4 of minBlocks (5) instants" in decided(BOTH, log).why
    # Commits that add no records do not count.
    log.record_base().record_base()
    assert log.facts.counts.least == 4
    assert created(decided(BOTH, log.append())).spec == {"tableRef": {"name": "flights"}}

    # After a log compaction it counts from there, although more are unmerged.
    log.compact().append(4)
    assert (log.facts.counts.since_merge, log.facts.counts.since_compaction) == (9, 4)
    waits = decided(BOTH, log, now_ms=NOON + HOUR - 1)
    assert waits.create == ()
    assert "4 of minBlocks (5) instants since the last log compaction" in waits.why

    # After a merge it counts from there, although more came since the log compaction.
    log.append().merge().append(4)
    assert (log.facts.counts.since_merge, log.facts.counts.since_compaction) == (4, 9)
    assert "4 of minBlocks (5) instants since the last merge" in decided(BOTH, log).why
    assert created(decided(BOTH, log.append(), now_ms=NOON + MINUTE)).line == LOG_COMPACTION_LINE


def test_L13_instants_that_came_after_the_plan_of_a_log_compaction_count() -> None:
    log = Log().append(9).compact(planned=6)
    assert log.facts.counts.since_compaction == 3
    assert log.facts.counts.since == 6
    log.append(2)
    assert log.facts.counts.least == 5
    # The same for a merge: it counts from the instant that it read.
    merged = Log().append(9).merge(up_to=6)
    assert merged.facts.counts.since_merge == 3


def test_L13_a_version_is_counted_by_what_it_commits_and_not_by_its_name() -> None:
    def commit(*blocks: Block, data_change: bool = True, **info: Any) -> LogVersion:
        adds = [AddFile(b.path, {}, b.size, 0, data_change, None, tags_of(b)) for b in blocks]
        body = {"operation": "WRITE", "tandem": info}
        return log_version(Commit(9, NOON, (CommitInfo(body), *adds)))

    own, older, stitched = Block("a", 9, 9, 1), Block("b", 4, 4, 1), Block("s", 2, 6, 1)
    assert commit(own) == LogVersion(9, NOON, appends=True)
    # A block that a restore of the base table brought back is not a new one.
    assert commit(older) == LogVersion(9, NOON)
    assert commit(own, older).appends
    assert commit(stitched, data_change=False, readVersion=7) == LogVersion(9, NOON, False, 7)
    # Without what Tandem notes: everything before it.
    assert commit(stitched, data_change=False).stitched == 8
    assert commit() == LogVersion(9, NOON)


# When a log compaction starts


def test_log_compaction_waits_for_its_interval_after_the_end_of_the_last() -> None:
    log = Log().append(5)
    first = created(decided(BOTH, log))
    assert first.kind == "LogCompaction"
    assert first.what == "LogCompaction of 5 blocks"
    again = log.compact().append(5)
    done = ended(running(first), NOON)
    waits = decided(BOTH, again, [done], now_ms=NOON + 30_000)
    assert (waits.create, waits.hold) == ((), AutoCompactionWait.INTERVAL)
    assert waits.wake_ms == waits.next_ms == NOON + MINUTE
    assert waits.why.startswith("The last log compaction is less than minInterval (1m) ago.")
    second = created(decided(BOTH, again, [done], now_ms=NOON + MINUTE))
    assert second.name != first.name
    # One that users started counts, too: its commit is in the log.
    assert decided(BOTH, again, now_ms=NOON + MINUTE - 1).create == ()
    hourly = policy(logCompaction={"minInterval": "1h"})
    assert decided(hourly, again, [done], now_ms=NOON + MINUTE).next_ms == NOON + HOUR


def test_settings_of_the_policy_are_in_the_log_compaction() -> None:
    wanted = policy(logCompaction={"minBlocks": 3, "maxBlockBytes": "1Mi", "minInterval": "9h"})
    assert created(decided(wanted, Log().append(3))).spec == {
        "tableRef": {"name": "flights"},
        "minBlocks": 3,
        "maxBlockBytes": "1Mi",
    }


def test_enough_instants_without_a_run_start_nothing() -> None:
    wanted = policy(logCompaction={"maxBlockBytes": "1Ki"})
    large = Log().append(9, size=1024)
    waits = decided(wanted, large)
    assert (waits.create, waits.wake_ms) == ((), None)
    assert waits.why == "No 5 consecutive small blocks are of about the same size."


# When a merge starts


@pytest.mark.parametrize(
    ("limits", "log", "starts_ms"),
    [
        ({}, Log().append(49), NOON + HOUR),
        ({}, Log().append(50), NOON),
        ({"maxBlocks": 2}, Log().append(1), NOON + HOUR),
        ({"maxBlocks": 2}, Log().append(2), NOON),
        ({"maxBytes": "1Ki"}, Log().append(1, size=1023), NOON + HOUR),
        ({"maxBytes": "1Ki"}, Log().append(2, size=512), NOON),
        ({"maxAge": "5m"}, Log().append(1), NOON + 5 * MINUTE),
        ({"maxAge": "5m"}, Log(now_ms=NOON - 5 * MINUTE).append(1), NOON),
    ],
)
def test_a_merge_starts_by_blocks_bytes_or_age(
    limits: dict[str, Any], log: Log, starts_ms: int
) -> None:
    wanted = policy(merge=limits)
    now = decided(wanted, log)
    assert now.next_ms == starts_ms
    assert bool(now.create) is (starts_ms == NOON)
    if not now.create:
        assert now.wake_ms == starts_ms
        assert "are unmerged, the oldest for less than maxAge" in now.why
        assert decided(wanted, log, now_ms=starts_ms - 1).create == ()
        now = decided(wanted, log, now_ms=starts_ms)
    child = created(now)
    assert child.spec == {"tableRef": {"name": "flights"}, "type": "LogMerge"}


def test_merged_blocks_that_keep_deletes_in_force_start_no_merge() -> None:
    log = Log().append(60).merge()
    log.live["d"] = Block("d", 3, 3, 2**40, deletes=7)
    waits = decided(BOTH, log, now_ms=NOON + 9 * HOUR)
    assert (waits.create, waits.wake_ms) == ((), None)
    assert waits.why.startswith("The table holds all records of the log.")


def test_a_merge_is_due_if_the_age_of_the_log_is_unknown() -> None:
    facts = replace(Log().append(1).facts, oldest_ms=None)
    assert decide_log(BOTH, FLIGHTS, facts, (), (), NOON).create


# Side by side


def test_of_both_the_merge_starts_and_the_other_waits_for_it() -> None:
    log = Log().append(50)
    merge = created(decided(BOTH, log))
    assert merge.line == LOG_MERGE_LINE
    beside = decided(BOTH, log, [running(merge)])
    assert (beside.create, beside.hold) == ((), AutoCompactionWait.AT_WORK)
    assert beside.next_what == "LogCompaction of 50 blocks"
    assert beside.why == (
        f"Waits for TableCompaction/{merge.name}. TableCompaction/{merge.name} is at work."
    )


def test_nothing_starts_beside_what_users_started() -> None:
    log = Log().append(50)
    for name in ("LogCompaction/mine", "TableCompaction/mine"):
        waits = decided(BOTH, log, others=[name])
        assert (waits.create, waits.hold) == ((), AutoCompactionWait.AT_WORK)
        assert waits.why.startswith(f"Waits for {name}.")


def test_a_suspended_one_keeps_its_own_line_only() -> None:
    log = Log().append(50)
    held = running(created(decided(BOTH, log)), phase="Suspended")
    assert created(decided(BOTH, log, [held])).line == LOG_COMPACTION_LINE


def test_I44_off_is_off() -> None:
    log = Log().append(99)
    assert decided(policy(), log).create == ()
    assert created(decided(policy(merge={}), log)).line == LOG_MERGE_LINE
    assert created(decided(policy(logCompaction={}), log)).line == LOG_COMPACTION_LINE


# Once


def test_L10_two_schedulers_that_see_different_instants_create_the_same_child() -> None:
    log = Log().append(5)
    first = created(decided(BOTH, log))
    log.append(2)
    assert created(decided(BOTH, log)).name == first.name
    assert created(decided(BOTH, log, [])).spec == first.spec
    merges = policy(merge={"maxBlocks": 3})
    merge = created(decided(merges, log))
    assert created(decided(merges, log.append())).name == merge.name
    assert merge.name != first.name
    # The next ones are others, as are those of another table or log.
    assert created(decided(merges, log.merge().append(3))).name != merge.name
    other = replace(log.facts, log_id="other")
    assert (
        created(decide_log(merges, FLIGHTS, other, (), (), NOON)).name
        != created(decided(merges, log)).name
    )


def test_a_failed_one_is_repeated_after_a_growing_pause() -> None:
    log, now, children = Log().append(50), NOON, list[ChildState]()
    wanted = policy(merge={})
    for number in range(4):
        child = created(decided(wanted, log, children, now_ms=now))
        assert child.retries == number
        children.append(ended(running(child, now), now, "Failed", "no room"))
        held = decided(wanted, log, children, now_ms=now)
        assert (held.create, held.hold) == ((), AutoCompactionWait.AFTER_FAILURE)
        assert "no room" in held.why
        assert held.next_ms == now + backoff_ms(number + 1)
        now = held.next_ms


def test_one_that_left_the_log_as_it_was_is_not_repeated_at_once() -> None:
    log = Log().append(50)
    merge = created(decided(policy(merge={}), log))
    done = ended(running(merge), NOON, "Superseded")
    held = decided(policy(merge={}), log, [done])
    assert held.hold is AutoCompactionWait.AFTER_FAILURE
    assert "did not change the log" in held.why
    # After a restore the same instants may be unmerged again, under a new name.
    back = created(decided(policy(merge={}), log, [done], now_ms=NOON + MINUTE))
    assert back.name != merge.name


def test_of_finished_children_the_last_few_stay() -> None:
    log = Log().append(5)
    done = [
        ended(running(replace(created(decided(BOTH, log)), name=f"c{n}"), NOON - n * HOUR),
              NOON - n * HOUR)
        for n in range(6)
    ]  # fmt: skip
    assert decided(BOTH, log, done).delete == ("c5", "c4", "c3")


# Against a slow and obvious model

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 300)),
        st.tuples(st.just("compact"), st.integers(0, 3)),
        st.tuples(st.just("merge"), st.integers(0, 3)),
        st.tuples(st.just("wait"), st.integers(1, 90)),
        st.tuples(st.just("record"), st.just(0)),
    ),
    max_size=40,
)


@given(
    EVENTS,
    st.integers(2, 6),
    st.integers(1, 8),
    st.integers(100, 1500),
    st.integers(1, 120),
    st.integers(0, 60),
)
def test_decisions_are_those_of_the_words(
    events: list[tuple[str, int]], least: int, blocks: int, size: int, age: int, interval: int
) -> None:
    wanted = policy(
        logCompaction={
            "minBlocks": least, "maxBlockBytes": 200, "minInterval": f"{interval}m"
        },
        merge={"maxBlocks": blocks, "maxBytes": size, "maxAge": f"{age}m"},
    )  # fmt: skip
    log = Log()
    # What happened, as plain notes: (kind, version that was appended or read, time).
    notes: list[tuple[str, int, int]] = []
    for event, number in events:
        newest = len(log.versions) - 1
        match event:
            case "append":
                log.append(size=number)
                notes.append(("append", newest + 1, log.now_ms))
            case "compact" if any(b.last <= newest - number for b in log.live.values()):
                log.compact(planned=newest - number)
                notes.append(("compact", newest - number, log.now_ms))
            case "merge" if newest - number > log.mark:
                log.merge(up_to=newest - number)
                notes.append(("merge", newest - number, log.now_ms))
            case "wait":
                log.now_ms += number * MINUTE
            case "record":
                log.record_base()
        found = decided(wanted, log, now_ms=log.now_ms)
        expected = plainly(notes, log, wanted)
        assert [child.line for child in found.create] == expected[:1]
        assert bool(found.why) is not bool(found.create)
        if found.wake_ms is not None:
            # Nothing becomes due earlier by the clock alone.
            assert found.wake_ms > log.now_ms
            if not found.create:
                assert not decided(wanted, log, now_ms=found.wake_ms - 1).create
                assert decided(wanted, log, now_ms=found.wake_ms).create
        elif not found.create:
            assert not decided(wanted, log, now_ms=log.now_ms + 1000 * HOUR).create


def plainly(notes: list[tuple[str, int, int]], log: Log, wanted: MergeOnRead) -> list[str]:
    """The lines that are due, by the words of the documentation."""
    assert wanted.merge is not None
    assert wanted.log_compaction is not None
    due = []
    merged = max((at for kind, at, _ in notes if kind == "merge"), default=-1)
    unmerged = [b for b in log.live.values() if b.last > merged]
    appended = [(at, ms) for kind, at, ms in notes if kind == "append"]
    if unmerged:
        oldest = min(ms for at, ms in appended if at > merged)
        if (
            len(unmerged) >= wanted.merge.max_blocks
            or sum(b.size for b in unmerged) >= wanted.merge.max_bytes
            or log.now_ms - oldest >= wanted.merge.max_age
        ):
            due.append(LOG_MERGE_LINE)
    policy_ = wanted.log_compaction
    compacted = max((at for kind, at, _ in notes if kind == "compact"), default=-1)
    last_ms = max((ms for kind, _, ms in notes if kind == "compact"), default=-(10**15))
    runs = small_runs(
        BlockLogState("base", 0, merged, dict(log.live)),
        min_blocks=policy_.min_blocks,
        max_bytes=policy_.max_block_bytes,
    )
    if (
        sum(at > merged for at, _ in appended) >= policy_.min_blocks
        and sum(at > compacted for at, _ in appended) >= policy_.min_blocks
        and log.now_ms - last_ms >= policy_.min_interval
        and runs
    ):
        due.append(LOG_COMPACTION_LINE)
    return due
