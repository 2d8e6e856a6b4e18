"""`skipOffsetFromLatest`: nothing younger is touched (A4), by whatever kind of compaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from support.lake.segments import add_file, loads, segments
from tandem.delta.actions import AddFile
from tandem.planning.compaction import plan_compaction, skipped_files
from tandem.planning.plans import CompactionPlan, CompactionRequest
from tandem.spec.compaction import CompactionTemplate, CompactionType, TableCompaction
from tandem.spec.resources import spec_hash
from tandem.spec.table import Granularity
from tandem.timeline.chunks import TimeColumn
from tandem.timeline.segments import Segment

DAY_MS = 24 * 3600 * 1000
DAYS = TimeColumn(("t",), Granularity.DAY)
KINDS = (CompactionType.MINOR, CompactionType.SEMI_MAJOR, CompactionType.MAJOR)
_START = datetime(2026, 3, 1, tzinfo=UTC)


def daily(day: int, number: int, *, until: int | None = None) -> AddFile:
    """A load of one day (or of several), the number-th of that day."""
    first, last = _START + timedelta(days=day), _START + timedelta(days=until or day, hours=23)
    return add_file(
        f"day-{day:02}-{number}",
        segment=str(100 * day + number),
        sequence=1000 + 100 * day + number,
        times=(first.isoformat(), last.isoformat()),
    )


def days_touched(plan: CompactionPlan) -> set[str]:
    return {file.path.split("-")[1] for file in plan.files}


@pytest.mark.parametrize("kind", KINDS)
def test_A4_the_newest_day_is_left_alone_and_the_days_before_are_compacted(
    kind: CompactionType,
) -> None:
    table = segments([daily(day, n) for day in range(3) for n in range(4)], DAYS)
    request = CompactionRequest(kind, skip_offset_ms=DAY_MS)

    plan = plan_compaction(table, request, granularity=Granularity.DAY)
    everything = plan_compaction(
        table, replace(request, skip_offset_ms=0), granularity=Granularity.DAY
    )

    assert days_touched(plan) == {"00", "01"}
    assert days_touched(everything) == {"00", "01", "02"}


def test_A4_a_file_that_reaches_into_the_protected_time_is_left_alone_too() -> None:
    table = segments(
        [*(daily(0, n) for n in range(4)), daily(0, 9, until=2), daily(2, 0), daily(2, 1)], DAYS
    )
    request = CompactionRequest(CompactionType.SEMI_MAJOR, skip_offset_ms=DAY_MS)

    plan = plan_compaction(table, request, granularity=Granularity.DAY)

    assert [file.path for file in plan.files] == [f"day-00-{n}" for n in range(4)]


def test_A4_files_of_unknown_time_count_as_recent() -> None:
    unknown = [add_file(f"day-xx-{n}", segment=str(n), sequence=n) for n in range(4)]
    table = segments([*unknown, *(daily(0, n) for n in range(4)), daily(5, 0)], DAYS)
    request = CompactionRequest(CompactionType.SEMI_MAJOR, skip_offset_ms=DAY_MS)

    assert days_touched(plan_compaction(table, request, granularity=Granularity.DAY)) == {"00"}


@pytest.mark.parametrize("granularity", [None, Granularity.ALL])
@pytest.mark.parametrize("kind", KINDS)
def test_A4_without_chunks_the_time_of_the_load_decides(
    kind: CompactionType, granularity: Granularity | None
) -> None:
    time = None if granularity is None else TimeColumn(("t",), granularity)
    table = loads(range(10), time=time)  # a millisecond apart
    request = CompactionRequest(kind, thresholds=(3,), skip_offset_ms=4)

    plan = plan_compaction(table, request, granularity=granularity)

    assert plan.segments == ("0", "1", "2", "3", "4", "5")  # 9 is the newest; 5 is 4 ms older


def test_A4_a_where_touches_no_recent_file_either() -> None:
    table = segments([daily(day, n) for day in range(2) for n in range(2)], DAYS)
    every = frozenset(file.path for segment in table for file in segment.files)
    request = CompactionRequest(CompactionType.CUSTOM, selected=every, skip_offset_ms=DAY_MS)

    plan = plan_compaction(table, request, granularity=Granularity.DAY)

    assert days_touched(plan) == {"00"}


def test_protected_files_are_reported() -> None:
    request = CompactionRequest(CompactionType.MINOR, skip_offset_ms=DAY_MS)
    table = segments([daily(0, n) for n in range(4)], DAYS)

    nothing = plan_compaction(table, request, granularity=Granularity.DAY).nothing

    assert nothing.endswith(
        "Skipped: 4 files within 24h of the newest data (skipOffsetFromLatest)."
    )


def test_named_segments_have_any_age() -> None:
    both = {"type": "Custom", "custom": {"segments": ["1"]}, "skipOffsetFromLatest": "1h"}
    with pytest.raises(ValidationError, match=r"does not go with custom\.segments"):
        TypeAdapter(CompactionTemplate).validate_python(both)


def test_an_absent_offset_leaves_the_identity_of_old_resources_unchanged() -> None:
    spec = {"tableRef": {"name": "flights"}, "type": "Minor"}
    resource = {
        "apiVersion": "tandem.dev/v1alpha1",
        "kind": "TableCompaction",
        "metadata": {"name": "tidy"},
    }

    plain = TableCompaction.model_validate({**resource, "spec": spec})
    other = TableCompaction.model_validate(
        {**resource, "spec": {**spec, "skipOffsetFromLatest": "0s"}}
    )

    # As hashed by the version before there was such a field.
    assert spec_hash(plain) == "a8c162ff5392e0e1330dc90146a277a60828eef4f8e7de9f88c07eb50d682d4b"
    assert spec_hash(other) != spec_hash(plain)


@given(
    days=st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 3)), unique=True, min_size=1, max_size=30
    ),
    offset=st.integers(0, 8 * 24).map(lambda hours: hours * 3600 * 1000),
    kind=st.sampled_from(KINDS),
)
def test_A4_nothing_in_the_last_hours_before_the_newest_end_is_ever_in_a_plan(
    days: list[tuple[int, int]], offset: int, kind: CompactionType
) -> None:
    table = segments([daily(*load) for load in days], DAYS)
    request = CompactionRequest(kind, thresholds=(2, 2), skip_offset_ms=offset)

    plan = plan_compaction(table, request, granularity=Granularity.DAY)

    end = max(day for day, _ in days) + 1
    assert all((end - int(day) - 1) * DAY_MS >= offset for day in days_touched(plan))


@given(
    loads_=st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from([1, 4 << 20, 200 << 20])), max_size=40
    ),
    timed=st.booleans(),
    thresholds=st.sampled_from([(4, 3), (2, 2), (3,), (2, 3, 2)]),
    preserve=st.integers(0, 3),
    offset=st.sampled_from([0, 2, DAY_MS]),
)
def test_a_minor_plan_of_its_own_inputs_is_the_same_plan(
    loads_: list[tuple[int, int]],
    timed: bool,
    thresholds: tuple[int, ...],
    preserve: int,
    offset: int,
) -> None:
    # What automatic compaction relies on: a child that names what was chosen does just that.
    adds = [replace(daily(day, at), size=size) for at, (day, size) in enumerate(loads_)]
    time = DAYS if timed else None
    table: Sequence[Segment] = segments(adds, time)
    request = CompactionRequest(
        CompactionType.MINOR, thresholds=thresholds, preserve=preserve, skip_offset_ms=offset
    )
    granularity = Granularity.DAY if timed else None
    plan = plan_compaction(table, request, granularity=granularity)

    again = plan_compaction(
        table, replace(request, among=frozenset(plan.segments)), granularity=granularity
    )

    assert again.runs == plan.runs
    assert not skipped_files(table, 0, granularity)
