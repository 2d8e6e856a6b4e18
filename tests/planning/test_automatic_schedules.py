"""When the schedules of automatic compaction start: as a slow and obvious model says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.automatic import (
    DAY,
    MINUTE,
    at,
    ended,
    policy,
    running,
    since,
    table,
)
from tandem.planning.automatic import decide
from tandem.planning.decision import ChildFact
from tandem.planning.moments import is_open, next_run
from tandem.spec.table import AutomaticCompaction

ZONE = "Europe/Berlin"


def watched(
    crons: list[tuple[str, str]],
    window: tuple[str, int] | None,
    interval: int,
    begin: int,
    days: int,
    lasts: list[int],
) -> list[tuple[int, str]]:
    """The starts `(minute, type)` of a policy of schedules only, minute by minute: who is due
    starts if the window is open, nobody is at work and the interval is over; semi-major first,
    but who was passed over before."""
    fires = {}
    for cron, _ in crons:
        times, moment = set(), begin
        while (moment := next_run(cron, ZONE, moment) or 0) and moment < begin + days * DAY:
            times.add(moment)
        fires[cron] = times
    due: dict[int, int] = {}
    passed: set[int] = set()
    starts: list[tuple[int, str]] = []
    free = begin
    for now in range(begin, begin + days * DAY, MINUTE):
        for number, (cron, _) in enumerate(crons):
            if now in fires[cron]:
                due[number] = now
                passed.discard(number)
        if not due or now < free:
            continue
        if starts and now < free + interval:
            continue
        if window is not None and not is_open(window[0], window[1], ZONE, now):
            continue
        order = ["SemiMajor", "Major"]
        first = min(due, key=lambda n: (n not in passed, order.index(crons[n][1]), due[n]))
        del due[first]
        passed.discard(first)
        passed |= due.keys()
        starts.append((now, crons[first][1]))
        free = now + lasts[len(starts) % len(lasts)] * MINUTE
    return starts


def decided(
    wanted: AutomaticCompaction, begin: int, days: int, lasts: list[int]
) -> list[tuple[int, str]]:
    """The starts that `decide` leads to, asked only when it said so or a child ended."""
    facts: dict[str, ChildFact] = {}
    ends: dict[str, int] = {}
    starts: list[tuple[int, str]] = []
    memory: Mapping[str, int] = {}
    now: int | None = begin
    while now is not None and now < begin + days * DAY:
        for name in [name for name, end in ends.items() if end <= now]:
            facts[name] = ended(facts[name], ends.pop(name))
        decision = decide(wanted, table([]), list(facts.values()), now, memory)
        memory = since(decision)
        for name in decision.delete:
            del facts[name]
        for child in decision.create:
            assert child.name not in facts
            facts[child.name] = running(child, now)
            starts.append((now, child.spec["type"]))
            ends[child.name] = now + lasts[len(starts) % len(lasts)] * MINUTE
        assert len(ends) <= 1
        following = [*ends.values(), *([] if decision.wake_ms is None else [decision.wake_ms])]
        if not decision.create:
            assert all(moment > now for moment in following)
            now = min(following, default=None)
    return starts


CRONS = ["0 3 * * *", "30 2 * * *", "*/45 * * * *", "15 */5 * * *", "0 1 * * 0", "10 4 1,26 * *"]


@settings(deadline=None, max_examples=15, suppress_health_check=[HealthCheck.too_slow])
@given(
    chosen=st.lists(st.sampled_from(CRONS), min_size=1, max_size=3, unique=True),
    types=st.lists(st.sampled_from(["SemiMajor", "Major"]), min_size=3, max_size=3),
    window=st.none()
    | st.tuples(st.sampled_from(["01:00", "02:30", "22:00"]), st.integers(1, 12 * 60)),
    interval=st.sampled_from([0, 10, 90, 26 * 60]),
    lasts=st.lists(st.integers(1, 300), min_size=1, max_size=3),
    begin=st.sampled_from(["2026-03-26", "2026-10-22", "2026-06-01"]),
)
def test_starts_are_those_of_a_simulation_minute_by_minute(
    chosen: list[str],
    types: list[str],
    window: tuple[str, int] | None,
    interval: int,
    lasts: list[int],
    begin: str,
) -> None:
    compare(list(zip(chosen, types, strict=False)), window, interval, at(begin), 6, lasts)


def test_a_year_of_schedules_in_berlin_is_that_of_a_simulation_minute_by_minute() -> None:
    crons = [("30 2 * * *", "SemiMajor"), ("0 4 * * 0", "Major")]
    compare(crons, ("01:00", 4 * 60), 10, at("2026-01-01"), 365, [20, 150, 45])


def compare(
    crons: list[tuple[str, str]],
    window: tuple[str, int] | None,
    interval: int,
    begin: int,
    days: int,
    lasts: list[int],
) -> None:
    fields: dict[str, Any] = {
        "schedules": [
            {"cron": cron, "timeZone": ZONE, "template": {"type": type_}} for cron, type_ in crons
        ],
        "minInterval": f"{interval}m",
        "history": {"succeeded": 0, "failed": 0},
    }
    if window is not None:
        duration = {"duration": f"{window[1]}m", "timeZone": ZONE}
        fields["maintenanceWindow"] = {"start": window[0], **duration}
        window = (window[0], window[1] * MINUTE)

    expected = watched(crons, window, interval * MINUTE, begin, days, lasts)

    assert decided(policy(**fields), begin, days, lasts) == expected
