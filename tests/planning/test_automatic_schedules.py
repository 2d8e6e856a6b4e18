"""When the schedules of automatic compaction start: as a slow and obvious model says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planning.automatic import (
    DAY,
    MINUTE,
    at,
    ended,
    policy,
    running,
    since,
    table,
)
from support.some import few
from tandem.planning.auto.decide import decide, is_open, next_run
from tandem.planning.auto.facts import ChildState
from tandem.spec.table import AutomaticCompaction

ZONE = "Europe/Berlin"


@dataclass(frozen=True)
class Case:
    """A policy of schedules only, and when to look at it. `crons` with their types, `window` with
    its length; all lengths in minutes. `lasts`: how long compactions take, one after another."""

    crons: list[tuple[str, str]]
    window: tuple[str, int] | None
    interval: int
    begin: int
    days: int
    lasts: list[int]

    @property
    def end(self) -> int:
        return self.begin + self.days * DAY

    def took(self, starts: int) -> int:
        return self.lasts[starts % len(self.lasts)] * MINUTE

    def policy(self) -> AutomaticCompaction:
        fields: dict[str, Any] = {
            "schedules": [
                {"cron": cron, "timeZone": ZONE, "template": {"type": type_}}
                for cron, type_ in self.crons
            ],
            "minInterval": f"{self.interval}m",
            "history": {"succeeded": 0, "failed": 0},
        }
        if self.window is not None:
            start, minutes = self.window
            window = {"start": start, "duration": f"{minutes}m", "timeZone": ZONE}
            fields["maintenanceWindow"] = window
        return policy(**fields)


def watched(case: Case) -> list[tuple[int, str]]:
    """The starts `(minute, type)` of a policy of schedules only, minute by minute: a due type
    starts if the window is open, no other one runs and the interval is over; semi-major first,
    except for one that was passed over before."""
    fires = {}
    for cron, _ in case.crons:
        times, moment = set(), case.begin
        while (moment := next_run(cron, ZONE, moment) or 0) and moment < case.end:
            times.add(moment)
        fires[cron] = times
    due: dict[int, int] = {}
    passed: set[int] = set()
    starts: list[tuple[int, str]] = []
    free = case.begin
    for now in range(case.begin, case.end, MINUTE):
        for number, (cron, _) in enumerate(case.crons):
            if now in fires[cron]:
                due[number] = now
                passed.discard(number)
        if not due or now < free:
            continue
        if starts and now < free + case.interval * MINUTE:
            continue
        if case.window is not None:
            start, minutes = case.window
            if not is_open(start, minutes * MINUTE, ZONE, now):
                continue
        order = ["SemiMajor", "Major"]
        first = min(due, key=lambda n: (n not in passed, order.index(case.crons[n][1]), due[n]))
        del due[first]
        passed.discard(first)
        passed |= due.keys()
        starts.append((now, case.crons[first][1]))
        free = now + case.took(len(starts))
    return starts


def decided(case: Case) -> list[tuple[int, str]]:
    """The starts that `decide` leads to, asked when it named a time or a child ended."""
    facts: dict[str, ChildState] = {}
    ends: dict[str, int] = {}
    starts: list[tuple[int, str]] = []
    memory: Mapping[str, int] = {}
    wanted = case.policy()
    now: int | None = case.begin
    while now is not None and now < case.end:
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
            ends[child.name] = now + case.took(len(starts))
        assert len(ends) <= 1
        following = [*ends.values(), *([] if decision.wake_ms is None else [decision.wake_ms])]
        if not decision.create:
            assert all(moment > now for moment in following)
            now = min(following, default=None)
    return starts


CRONS = ["0 3 * * *", "30 2 * * *", "*/45 * * * *", "15 */5 * * *", "0 1 * * 0", "10 4 1,26 * *"]


@settings(deadline=None, max_examples=few(3, 40), suppress_health_check=[HealthCheck.too_slow])
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
    crons = list(zip(chosen, types, strict=False))
    case = Case(crons, window, interval, at(begin), 6, lasts)
    assert decided(case) == watched(case)


@pytest.mark.matrix
def test_a_year_of_schedules_in_berlin_is_that_of_a_simulation_minute_by_minute() -> None:
    crons = [("30 2 * * *", "SemiMajor"), ("0 4 * * 0", "Major")]
    case = Case(crons, ("01:00", 4 * 60), 10, at("2026-01-01"), 365, [20, 150, 45])
    assert decided(case) == watched(case)
