"""Schedules and windows against a clock that is watched minute by minute."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from support.present import present
from tandem.planning.auto.decide import (
    is_open,
    kubernetes_time,
    latest_run,
    next_opening,
    next_run,
)

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
BERLIN = "Europe/Berlin"
ZONES = ("UTC", BERLIN, "America/New_York", "Australia/Lord_Howe")


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


@cache
def clock(zone: str, start_ms: int, days: int) -> tuple[tuple[int, datetime], ...]:
    """What a clock on the wall shows at every minute."""
    tz = ZoneInfo(zone)
    first = datetime.fromtimestamp(start_ms / 1000, UTC)
    return tuple(
        (start_ms + n * MINUTE, (first + timedelta(minutes=n)).astimezone(tz).replace(tzinfo=None))
        for n in range(days * 24 * 60)
    )


def matches(cron: str, wall: datetime) -> bool:
    """The five fields one by one, as `man 5 crontab` has it."""
    minute, hour, day, month, weekday = cron.split()
    days = has(day, wall.day, 1, 31), has(weekday, wall.isoweekday() % 7, 0, 6)
    either = not day.startswith("*") and not weekday.startswith("*")
    return (
        has(minute, wall.minute, 0, 59)
        and has(hour, wall.hour, 0, 23)
        and has(month, wall.month, 1, 12)
        and (any(days) if either else all(days))
    )


def has(field: str, value: int, low: int, high: int) -> bool:
    for term in field.split(","):
        span, _, step = term.partition("/")
        first, _, last = span.partition("-")
        begin, end = (low, high) if span == "*" else (int(first), int(last or first))
        if begin <= value <= end and (value - begin) % int(step or 1) == 0:
            return True
    return False


def is_fixed(cron: str) -> bool:
    return not any(field.startswith("*") for field in cron.split()[:2])


def fires(cron: str, zone: str, start_ms: int, days: int) -> list[int]:
    """Every time at which a schedule fires, in order, by watching the clock: what moves by
    stars follows real time; a fixed time counts the first time that it is seen, and what the
    clock jumps over comes right after."""
    fixed = is_fixed(cron)
    found: list[int] = []
    highest: datetime | None = None
    for ms, wall in clock(zone, start_ms, days):
        if not fixed:
            if matches(cron, wall):
                found.append(ms)
            continue
        if highest is not None and wall <= highest:
            continue  # the same hour again
        new = wall if highest is None else highest + timedelta(minutes=1)
        while new <= wall:
            if matches(cron, new) and ms not in found[-1:]:
                found.append(ms)
            new += timedelta(minutes=1)
        highest = wall
    return found


crons = st.builds(
    " ".join,
    st.tuples(
        st.sampled_from(["0", "30", "15,45", "*/20", "59", "0-10/5"]),
        st.sampled_from(["*", "2", "1-3", "3", "*/6", "0,2,23"]),
        st.sampled_from(["*", "1", "*/2", "29"]),
        st.sampled_from(["*", "3,10", "4-11"]),
        st.sampled_from(["*", "0", "1-5"]),
    ),
)
starts = st.sampled_from(
    ["2026-03-26", "2026-10-22", "2026-03-05", "2026-10-30", "2026-06-01", "2026-04-02"]
)


@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(cron=crons, zone=st.sampled_from(ZONES), start=starts, offset=st.integers(0, 3 * DAY))
def test_runs_are_those_that_a_watched_clock_gives(
    cron: str, zone: str, start: str, offset: int
) -> None:
    # By whole hours, as cronsim has it; fixed times are right everywhere.
    assume(is_fixed(cron) or zone != "Australia/Lord_Howe")
    begin = at(start)
    runs = fires(cron, zone, begin - DAY, 8)
    now = begin + offset

    expected = next((run for run in runs if run > now), None)
    found = next_run(cron, zone, now)
    assert found == expected or (expected is None and (found or now) >= begin + 7 * DAY)

    missed = [run for run in runs if begin <= run <= now]
    assert latest_run(cron, zone, after_ms=begin - 1, until_ms=now) == max(missed, default=None)


@pytest.mark.matrix
def test_a_whole_year_in_berlin_has_every_nightly_run_once() -> None:
    year = at("2026-01-01")
    found = []
    moment: int | None = year
    while (moment := next_run("30 2 * * *", BERLIN, moment or year)) and moment < year + 365 * DAY:
        found.append(moment)

    assert len(found) == 365
    assert found == fires("30 2 * * *", BERLIN, year, 365)
    # 2:30 does not exist on the last Sunday of March, and exists twice on that of October.
    assert at("2026-03-29T01:00") in found
    assert at("2026-10-25T00:30") in found
    assert at("2026-10-25T01:30") not in found


@pytest.mark.parametrize("cron", ["0 0 29 2 *", "0 0 * 2 1", "0 12 31 12 *"])
def test_rare_moments_are_found_forwards_and_backwards(cron: str) -> None:
    first = present(next_run(cron, BERLIN, at("2026-06-01")))
    second = present(next_run(cron, BERLIN, first))
    assert latest_run(cron, BERLIN, after_ms=0, until_ms=second - 1) == first
    assert latest_run(cron, BERLIN, after_ms=first, until_ms=second - 1) is None


def test_a_moment_that_never_comes_ends_the_search() -> None:
    # The first of a month that is its last Monday: cron can say it, no calendar has it.
    assert next_run("0 0 */31 * 1L", BERLIN, at("2026-01-01")) is None
    assert latest_run("0 0 */31 * 1L", BERLIN, after_ms=0, until_ms=at("2026-01-01")) is None


@settings(deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(
    start=st.times().map(lambda t: f"{t.hour:02}:{t.minute:02}"),
    minutes=st.integers(1, 24 * 60),
    zone=st.sampled_from(ZONES),
    day=starts,
    offset=st.integers(0, 5 * 24 * 60),
)
def test_a_window_is_open_as_long_after_its_beginning_as_it_says(
    start: str, minutes: int, zone: str, day: str, offset: int
) -> None:
    begin = at(day)
    now = begin + offset * MINUTE
    hour, minute = map(int, start.split(":"))
    openings = fires(f"{minute} {hour} * * *", zone, begin - 3 * DAY, 11)

    assert is_open(start, minutes * MINUTE, zone, now) == any(
        opening <= now < opening + minutes * MINUTE for opening in openings
    )
    assert next_opening(start, zone, now) == min(o for o in openings if o > now)


def test_a_window_goes_over_midnight() -> None:
    open_at = [is_open("23:00", 4 * HOUR, BERLIN, at(f"2026-07-01T{h:02}:00")) for h in range(24)]

    # In summer Berlin is two hours ahead: 21:00 to 01:00.
    assert [hour for hour, is_ in enumerate(open_at) if is_] == [0, 21, 22, 23]


def test_times_are_spelled_as_kubernetes_does() -> None:
    assert kubernetes_time(at("2026-11-21T10:00:01") + 999) == "2026-11-21T10:00:01Z"
