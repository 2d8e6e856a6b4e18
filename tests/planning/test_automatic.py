"""Automatic compaction: what is decided, by whom, in which order, and what is reported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planning.automatic import (
    DAY,
    FLIGHTS,
    HOUR,
    MINUTE,
    NIGHTLY,
    NOON,
    WEEKLY,
    at,
    created,
    ended,
    policy,
    running,
    since,
    table,
)
from support.documents import document
from support.lake.segments import add_file, loads, segments
from tandem.planning.auto.decide import decide
from tandem.planning.auto.facts import MINOR_LINE, ChildState, TableId, backoff_ms
from tandem.planning.auto.indexed_table import TableFacts
from tandem.spec.compaction import TableCompaction
from tandem.spec.table import Granularity
from tandem.timeline.chunks import TimeColumn
from tandem.timeline.segments import Segment

# A1


def test_A1_a_minor_compaction_starts_as_soon_as_a_run_is_compactible() -> None:
    wanted = policy(minor={"thresholds": [4, 3]})

    waits = decide(wanted, table(range(3)), (), NOON)
    assert (waits.create, waits.next_ms, waits.wake_ms) == ((), None, None)
    assert "It needs 4 of level 0 or 3 of level 1" in waits.why

    child = created(decide(wanted, table(range(4)), (), NOON))
    assert child.spec == {
        "tableRef": {"name": "flights"},
        "type": "Minor",
        "minor": {"thresholds": [4, 3], "segments": ["0", "1", "2", "3"]},
    }
    assert child.what == "Minor of segments 0-3"


def test_A1_loads_that_arrive_meanwhile_are_the_next_ones() -> None:
    wanted = policy(minor={})
    first = running(created(decide(wanted, table(range(4)), (), NOON)), NOON)

    beside = decide(wanted, table(range(9)), [first], NOON)
    assert (beside.create, beside.why) == ((), f"TableCompaction/{first.name} is at work.")

    after = decide(wanted, table(["0.1", *range(4, 9)]), [ended(first, NOON + 1)], NOON + 2)
    assert created(after).spec["minor"]["segments"] == ["4", "5", "6", "7"]
    assert created(after).name != first.name


def test_A1_off_is_off() -> None:
    for fields in ({}, {"minor": {"enabled": False}}):
        decision = decide(policy(**fields), table(range(8)), (), NOON)
        assert decision.create == ()
        assert decision.why == "Neither minor compactions, chunks nor schedules are configured."


def test_A1_a_table_of_many_small_files_is_compacted_in_batches() -> None:
    wanted = policy(minor={"thresholds": [100]})
    child = created(decide(wanted, table(range(5000)), (), NOON))
    assert child.spec["minor"]["segments"] == [str(n) for n in range(2000)]

    # One run that is longer than that is taken whole; and one too long to be named is chosen
    # again by the child.
    long = created(decide(policy(minor={"thresholds": [3000]}), table(range(3000)), (), NOON))
    assert len(long.spec["minor"]["segments"]) == 3000
    deep = policy(minor={"thresholds": [2, 5001]})
    longer = created(decide(deep, table(range(10_002)), (), NOON))
    assert longer.spec["minor"] == {"thresholds": [2, 5001]}


def test_settings_of_the_policy_are_in_every_child() -> None:
    shared = {
        "skipOffsetFromLatest": "1ms",
        "sparkTemplate": {"spec": {"image": "spark"}},
        "activeDeadlineSeconds": 3600,
        "maxBytesPerCommit": "1Gi",
        "minRowGroupRows": 0,
    }
    wanted = policy(
        minor={"preserve": 1, "maxSegmentSize": "1Gi", "targetFileSize": "64Mi"},
        schedules=[{"cron": "* * * * *", "template": {"type": "Major", "targetFileSize": "1Gi"}}],
        **shared,
    )
    begun = decide(wanted, table(range(5)), (), NOON)

    minor = created(begun).spec
    assert minor == {
        **shared,
        "tableRef": {"name": "flights"},
        "type": "Minor",
        "minor": {
            "thresholds": [4, 3],
            "preserve": 1,
            "maxSegmentSize": "1Gi",
            "segments": ["0", "1", "2", "3"],
        },
        "targetFileSize": "64Mi",
    }
    major = created(decide(wanted, table([]), (), NOON + MINUTE, since(begun))).spec
    assert major == {
        **shared,
        "tableRef": {"name": "flights"},
        "type": "Major",
        "targetFileSize": "1Gi",
    }


def test_a_template_overrides_from_how_many_rows_row_groups_are_copied() -> None:
    templates = ({"type": "Major", "minRowGroupRows": 0}, {"type": "Major"})
    for template, least in zip(templates, (0, 1_000), strict=True):
        schedules = [{"cron": "* * * * *", "template": template}]
        wanted = policy(minRowGroupRows=1_000, schedules=schedules)
        begun = decide(wanted, table([]), (), NOON)
        child = created(decide(wanted, table([]), (), NOON + MINUTE, since(begun)))
        assert child.spec["minRowGroupRows"] == least


# A2, A3


def test_A2_a_semi_major_compaction_comes_by_its_schedule_while_appends_go_on_beside_it() -> None:
    wanted = policy(minor={}, schedules=[NIGHTLY])
    begun = decide(wanted, table(["0.1", "4.1", 8]), (), NOON)
    assert begun.create == ()
    assert begun.next_ms == at("2026-06-11T03:00")
    assert begun.next_what == "SemiMajor by schedule '0 3 * * *'"
    assert begun.wake_ms == begun.next_ms

    night = at("2026-06-11T03:00")
    child = created(decide(wanted, table(["0.1", "4.1", 8]), (), night, since(begun)))
    assert child.spec == {"tableRef": {"name": "flights"}, "type": "SemiMajor"}
    semi_major = running(child, night, segments=["0.1", "4.1", "8"])

    # New loads do not wait for it, and take nothing of it: 8 would make four with 9 to 11.
    busy = decide(wanted, table(["0.1", "4.1", *range(8, 12)]), [semi_major], night + HOUR)
    assert busy.create == ()
    beside = decide(wanted, table(["0.1", "4.1", *range(8, 13)]), [semi_major], night + HOUR)
    assert created(beside).spec["minor"]["segments"] == ["9", "10", "11", "12"]

    # Before it has planned, its inputs are unknown.
    unplanned = decide(
        wanted, table(["0.1", "4.1", *range(8, 13)]), [replace(semi_major, segments=None)], night
    )
    assert unplanned.create == ()
    assert unplanned.why.startswith(f"Waits for TableCompaction/{child.name}.")
    assert unplanned.next_what == "Minor of segments 8-11,0.1,4.1"

    # A second one of the same schedule waits for the first, however long it takes.
    late = decide(wanted, table(["0.1", 8]), [semi_major], night + 25 * HOUR, since(begun))
    assert late.create == ()
    assert f"TableCompaction/{child.name} is at work." in late.why


def test_A3_minor_then_semi_major_then_major_when_all_are_due() -> None:
    wanted = policy(minor={}, schedules=[WEEKLY, NIGHTLY])
    begun = decide(wanted, table([]), (), NOON)
    now = at("2026-06-11T03:00")
    facts: list[ChildState] = []
    order = []
    names: list[str | int] = [0, 1, 2, 3]
    for _ in range(3):
        child = created(decide(wanted, table(names), facts, now, since(begun)))
        order.append(child.spec["type"])
        fact = running(child, now, segments=map(str, names))
        # While it is at work, none of the others starts.
        alone = decide(wanted, table(names), [*facts, fact], now + 1, since(begun))
        assert alone.create == ()
        facts.append(ended(fact, now + 10 * MINUTE))
        now += 10 * MINUTE
        names = ["0.1"]
    assert order == ["Minor", "SemiMajor", "Major"]

    done = decide(wanted, table(names), facts, now, since(begun))
    assert (done.create, done.next_ms) == ((), at("2026-06-12T03:00"))


def test_A3_a_schedule_that_was_passed_over_goes_next() -> None:
    # Loads arrive faster than they are compacted: the nightly one must start all the same.
    wanted = policy(minor={}, schedules=[NIGHTLY])
    begun = decide(wanted, table([]), (), NOON)
    now = at("2026-06-11T03:00")

    first = created(decide(wanted, table(range(4)), (), now, since(begun)))
    facts = [ended(running(first, now), now + MINUTE)]
    second = created(decide(wanted, table(range(4, 8)), facts, now + MINUTE, since(begun)))

    assert (first.spec["type"], second.spec["type"]) == ("Minor", "SemiMajor")


# A4


def test_A4_recent_files_start_no_minor_compaction_and_every_child_leaves_them_alone() -> None:
    days = TimeColumn(("t",), Granularity.DAY)

    def day(number: int, loads_: int) -> list[Any]:
        return [
            add_file(
                f"{number}-{n}",
                segment=str(10 * number + n),
                sequence=10 * number + n,
                times=(f"2026-06-{number:02}T01:00:00Z", f"2026-06-{number:02}T02:00:00Z"),
            )
            for n in range(loads_)
        ]

    def facts(*adds: list[Any]) -> TableFacts:
        return TableFacts(FLIGHTS, segments(chain(*adds), days), Granularity.DAY)

    wanted = policy(minor={}, skipOffsetFromLatest="24h", schedules=[NIGHTLY])
    alone = decide(wanted, facts(day(1, 4)), (), NOON)
    assert alone.create == ()
    assert "Skipped: 4 files within 24h of the newest data (skipOffsetFromLatest)." in alone.why

    # Once there is a newer day, the first is no longer young.
    child = created(decide(wanted, facts(day(1, 4), day(2, 4)), (), NOON))
    assert child.spec["minor"]["segments"] == ["10", "11", "12", "13"]
    assert child.spec["skipOffsetFromLatest"] == "24h"

    night = decide(wanted, facts(day(1, 1)), (), NOON + DAY, since(alone))
    assert created(night).spec["skipOffsetFromLatest"] == "24h"
    own = {"cron": "0 3 * * *", "template": {"type": "SemiMajor", "skipOffsetFromLatest": "48h"}}
    wanted = policy(skipOffsetFromLatest="24h", schedules=[own])
    begun = decide(wanted, facts(), (), NOON)
    night = decide(wanted, facts(), (), NOON + DAY, since(begun))
    assert created(night).spec["skipOffsetFromLatest"] == "48h"


# A5


def test_A5_two_that_decide_at_once_ask_for_the_same_child() -> None:
    wanted = policy(minor={}, schedules=[NIGHTLY])
    one, two = (created(decide(wanted, table(range(4)), (), NOON + n)) for n in (0, 1234))
    assert one == two
    # One who has seen a few more loads means the same one.
    more = created(decide(wanted, table(range(9)), (), NOON))
    assert more.name == one.name

    begun = since(decide(wanted, table([]), (), NOON))
    night = at("2026-06-11T03:00")
    one, two = (created(decide(wanted, table([]), (), night + n, begun)) for n in (0, 7 * MINUTE))
    assert one == two
    assert one.name == f"flights-semi-major-{one.line}-{night // MINUTE}"


def test_A5_after_a_restart_nothing_is_done_twice_and_nothing_missed_is_lost() -> None:
    wanted = policy(schedules=[NIGHTLY])
    begun = since(decide(wanted, table([]), (), NOON))
    night = at("2026-06-11T03:00")

    # The operator was away for three nights: only the last one counts.
    late = decide(wanted, table([]), (), night + 2 * DAY + HOUR, begun)
    child = created(late)
    assert child.scheduled_ms == night + 2 * DAY

    # It died before it could remember: the child says so itself; and without the child the
    # memory says so.
    fact = running(child, night + 2 * DAY + HOUR)
    again = decide(wanted, table([]), [fact], night + 2 * DAY + 2 * HOUR, begun)
    assert again.create == ()
    assert since(again) == {child.line: night + 2 * DAY}
    gone = decide(wanted, table([]), (), night + 2 * DAY + 3 * HOUR, since(again))
    assert (gone.create, gone.next_ms) == ((), night + 3 * DAY)


def test_A5_a_new_schedule_does_not_run_for_the_past() -> None:
    old = ended(
        running(created(decide(policy(minor={}), table(range(4)), (), NOON)), NOON), NOON + 1
    )
    wanted = policy(schedules=[{"cron": "0 0 1 1 *", "template": {"type": "Major"}}])

    decision = decide(wanted, table(range(4)), [old], NOON)

    assert (decision.create, decision.next_ms) == ((), at("2027-01-01"))
    # The same schedule twice is one.
    twice = policy(schedules=[NIGHTLY, NIGHTLY])
    assert len(decide(twice, table([]), (), NOON).schedules) == 1


@given(
    name=st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,250}[a-z0-9])?", fullmatch=True).filter(
        lambda name: ".." not in name and "-." not in name and ".-" not in name
    ),
    type_=st.sampled_from(["Minor", "SemiMajor", "Major"]),
)
def test_A5_names_fit_into_labels_and_differ_by_table(name: str, type_: str) -> None:
    wanted = policy(minor={}, schedules=[{"cron": "0 3 * * *", "template": {"type": type_}}])

    def names(id_: TableId) -> set[str]:
        begun = since(decide(wanted, table([], id_), (), NOON))
        minor = created(decide(wanted, table(range(4), id_), (), NOON))
        late = created(decide(wanted, table([], id_), (), NOON + DAY, begun))
        return {minor.name, late.name}

    found = names(TableId(name, "u1"))
    assert len(found) == 2
    for each in found:
        assert len(each) <= 63
        TableCompaction.model_validate(
            document("TableCompaction", each, {"tableRef": {"name": name}, "type": "Minor"})
        )
    # The same table, recreated, and another one whose name starts alike.
    assert not found & names(TableId(name, "u2"))


# Failures


def test_after_failures_the_backoff_grows_and_is_shown() -> None:
    wanted = policy(minor={})
    facts: list[ChildState] = []
    now, waits = NOON, []
    for number in range(9):
        child = created(decide(wanted, table(range(4 + number)), facts, now))
        assert child.retries == number
        failed = ended(running(child, now), now + MINUTE, "Failed", "no space left")
        facts = [*facts[-1:], failed]  # the others went with the history
        now += MINUTE
        # More loads change nothing about it.
        held = decide(wanted, table(range(5 + number)), facts, now)
        assert held.create == ()
        assert held.next_ms == held.wake_ms
        assert f"{failed.display} failed: no space left." in held.why
        assert "Next attempt after" in held.why
        assert held.next_ms is not None
        waits.append((held.next_ms - now) // MINUTE)
        assert decide(wanted, table(range(5)), facts, held.next_ms - 1).create == ()
        now = held.next_ms
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert "It failed 9 times in a row" in held.why
    assert len({fact.name for fact in facts}) == len(facts)

    well = ended(running(created(decide(wanted, table(range(4)), facts, now)), now), now + 1)
    after = created(decide(wanted, table(range(4, 8)), [*facts, well], now + 2))
    assert after.retries == 0


def test_a_compaction_that_did_nothing_is_not_requested_again_at_once() -> None:
    wanted = policy(minor={})
    child = created(decide(wanted, table(range(4)), (), NOON))
    idle = ended(running(child, NOON), NOON + 1)

    again = decide(wanted, table(range(4)), [idle], NOON + 2)

    assert (again.create, again.next_ms) == ((), NOON + 1 + MINUTE)
    assert f"{idle.display} did not change its segments." in again.why
    other = created(decide(wanted, table(range(4)), [idle], NOON + 1 + MINUTE))
    assert other.name != child.name


def test_inputs_that_a_restore_brings_back_are_compacted_again() -> None:
    wanted = policy(minor={})
    first = created(decide(wanted, table(range(4)), (), NOON))
    done = ended(running(first, NOON), NOON + 1)
    second = created(decide(wanted, table(range(4, 8)), [done], NOON + 2))
    both = [done, ended(running(second, NOON + 2), NOON + 3)]

    again = created(decide(wanted, table(range(4)), both, NOON + 4))

    assert again.name not in {first.name, second.name}


def test_a_failed_run_of_a_schedule_waits_for_the_next_time() -> None:
    wanted = policy(schedules=[{"cron": "* * * * *", "template": {"type": "Major"}}])
    begun = since(decide(wanted, table([]), (), NOON))
    facts: list[ChildState] = []
    now = NOON + MINUTE
    for number in range(4):
        child = created(decide(wanted, table([]), facts, now, begun))
        facts = [ended(running(child, now), now, "Failed", "boom")]
        held = decide(wanted, table([]), facts, now + 1, begun)
        assert held.next_ms == now + max(MINUTE, backoff_ms(number + 1))
        assert decide(wanted, table([]), facts, held.next_ms - 1, begun).create == ()
        now = held.next_ms
    late = created(decide(wanted, table([]), facts, now, begun))
    assert late.scheduled_ms == now == NOON + (1 + 1 + 2 + 4 + 8) * MINUTE


def test_a_schedule_may_ask_for_a_layout() -> None:
    layout = {"strategy": "ZOrder", "columns": ["carrier"]}
    sorted_ = {"cron": "0 3 * * *", "template": {"type": "SemiMajor", "layout": layout}}
    wanted = policy(minor={}, schedules=[sorted_])
    begun = since(decide(wanted, table([]), (), NOON))

    decision = decide(wanted, table([]), (), NOON + 2 * DAY, begun)

    assert created(decision).spec["layout"] == layout
    assert created(decision).line != MINOR_LINE


# When


def test_min_interval_is_from_the_end_of_one_to_the_start_of_the_next() -> None:
    wanted = policy(minor={}, minInterval="10m")
    first = created(decide(wanted, table(range(4)), (), NOON))
    done = ended(running(first, NOON), NOON + 5 * MINUTE)

    early = decide(wanted, table(range(4, 8)), [done], NOON + 6 * MINUTE)

    assert (early.create, early.next_ms) == ((), NOON + 15 * MINUTE)
    assert early.next_what == "Minor of segments 4-7"
    assert early.why == "The last one is less than minInterval (10m) ago."
    created(decide(wanted, table(range(4, 8)), [done], NOON + 15 * MINUTE))


def test_outside_the_maintenance_window_nothing_starts() -> None:
    window = {"start": "01:00", "duration": "4h", "timeZone": "Europe/Berlin"}
    wanted = policy(minor={}, maintenanceWindow=window, schedules=[NIGHTLY])

    outside = decide(wanted, table(range(4)), (), NOON)

    assert outside.create == ()
    assert outside.next_ms == at("2026-06-10T23:00")  # 1:00 in Berlin, in summer
    assert outside.why == "Outside the maintenance window (01:00 for 4h, Europe/Berlin)."
    created(decide(wanted, table(range(4)), (), at("2026-06-11T02:59")))
    assert decide(wanted, table(range(4)), (), at("2026-06-11T03:00")).create == ()
    # A schedule is meant in the window's zone, unless it says otherwise: 3:00 in Berlin.
    assert decide(wanted, table([]), (), NOON).next_ms == at("2026-06-11T01:00")
    utc = policy(maintenanceWindow=window, schedules=[{**NIGHTLY, "timeZone": "UTC"}])
    assert decide(utc, table([]), (), NOON).next_ms == at("2026-06-11T23:00")


def test_a_suspended_child_holds_nothing_and_keeps_its_line() -> None:
    wanted = policy(minor={}, schedules=[NIGHTLY])
    begun = since(decide(wanted, table([]), (), NOON))
    night = at("2026-06-11T03:00")
    semi_major = running(created(decide(wanted, table([]), (), night, begun)), night, segments=None)
    asleep = replace(semi_major, phase="Suspended")

    created(decide(wanted, table(range(4)), [asleep], night + 1, begun))
    later = decide(wanted, table([]), [asleep], night + DAY, begun)
    assert (later.create, f"{asleep.display} is suspended." in later.why) == ((), True)


# History


@given(
    ends=st.lists(
        st.tuples(
            st.sampled_from([MINOR_LINE, "gone"]),
            st.sampled_from(["Succeeded", "Superseded", "Failed", "Running", "Suspended"]),
        ),
        max_size=20,
    ),
    limits=st.tuples(st.integers(0, 4), st.integers(0, 4)),
)
def test_history_keeps_the_newest_of_either_kind_and_all_unfinished(
    ends: list[tuple[str, str]], limits: tuple[int, int]
) -> None:
    facts = []
    for number, (line, phase) in enumerate(ends):
        fact = ChildState(f"c{number:02}", line, phase, created_ms=number, segments=frozenset())
        over = phase not in ("Running", "Suspended")
        facts.append(ended(fact, number, phase) if over else fact)
    wanted = policy(minor={}, history={"succeeded": limits[0], "failed": limits[1]})

    deleted = decide(wanted, table([]), facts[::-1], NOON).delete

    left = [fact for fact in facts if fact.name not in deleted]
    assert [fact.name for fact in facts if not fact.ended and fact not in left] == []
    last = next((f for f in reversed(facts) if f.ended and f.line == MINOR_LINE), None)
    assert last is None or last in left
    for failed, limit in ((False, limits[0]), (True, limits[1])):
        kind = [f for f in facts if f.ended and f.failed is failed]
        expected = kind[max(len(kind) - limit, 0) :]
        if last is not None and last in kind and last not in expected:
            expected = [last, *expected]
        assert [f for f in left if f in kind] == expected
    assert list(deleted) == sorted(deleted)


@pytest.mark.parametrize("failures", [0, 1, 5, 10_000])
def test_backoff_is_bounded(failures: int) -> None:
    assert 0 <= backoff_ms(failures) <= HOUR


def test_the_segments_of_a_table_may_be_any_sequence() -> None:
    found: Sequence[Segment] = loads(range(4))
    assert decide(policy(minor={}), TableFacts(FLIGHTS, list(found)), (), NOON).create
