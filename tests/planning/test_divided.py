"""Semi-major plans whose outputs end at borders of time: what is taken, and what is cut."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.lake.segments import MIB, add_file, segments
from tandem.delta.actions import AddFile
from tandem.errors import InvalidSpec
from tandem.intervals import IntervalSet, TimeInterval
from tandem.planning.compaction import plan_compaction
from tandem.planning.major import taken_intervals
from tandem.planning.plans import CompactionPlan, CompactionRequest
from tandem.spec.compaction import CompactionType
from tandem.spec.fields import Granularity
from tandem.timeline.chunks import TimeColumn, parse_chunk
from tandem.timeline.masks import TAG_MASKED, format_masked

TIMES = {
    "first": ("2013-03-01T00:00:00.000Z", "2013-03-01T23:00:00.000Z"),
    "second": ("2013-03-02T00:00:00.000Z", "2013-03-02T23:00:00.000Z"),
    "both": ("2013-03-01T00:00:00.000Z", "2013-03-02T23:00:00.000Z"),
    "an hour": ("2013-03-02T05:00:00.000Z", "2013-03-02T05:30:00.000Z"),
}
SEMI = CompactionRequest(CompactionType.SEMI_MAJOR)
CUT = replace(SEMI, chunks=("2013-03-02",), cuts=True)
SECOND = parse_chunk("2013-03-02", Granularity.DAY)


def files(*names: str, size: int = MIB) -> list[AddFile]:
    return [
        add_file(f"{at}-{name}", segment=str(at), sequence=at, size=size, times=TIMES[name])
        for at, name in enumerate(names)
    ]


def planned(
    found: list[AddFile],
    request: CompactionRequest,
    *,
    table: Granularity = Granularity.DAY,
    borders: Granularity = Granularity.DAY,
) -> CompactionPlan:
    return plan_compaction(
        segments(found, TimeColumn(("t",), table)),
        request,
        granularity=table,
        divided=segments(found, TimeColumn(("t",), borders)),
    )


def taken(plan: CompactionPlan) -> list[str]:
    return [file.path for file in plan.files]


def test_D41_a_day_is_divided_into_hours_once() -> None:
    request = replace(SEMI, chunks=("2013-03-02",))
    plan = planned(files("first", "second"), request, borders=Granularity.HOUR)
    assert taken(plan) == ["1-second"]
    [run] = plan.runs
    assert (run.output, run.interval) == ("1.1", SECOND)
    # Each of its files lies within an hour then.
    assert not planned(files("first", "an hour"), request, borders=Granularity.HOUR).runs


def test_S29_hours_and_days_side_by_side_are_put_together() -> None:
    plan = planned(files("second", "an hour", "first"), SEMI, table=Granularity.HOUR)
    assert taken(plan) == ["0-second", "1-an hour"]
    # At the granularity of hours the day spans its hours, and is divided.
    hours = planned(files("second", "an hour"), SEMI, borders=Granularity.HOUR)
    assert taken(hours) == ["0-second", "1-an hour"]


def test_Z17_borders_need_not_be_those_of_the_table() -> None:
    request = replace(SEMI, chunks=("2013-03",))
    plan = planned(files("both"), request, table=Granularity.MONTH)
    assert taken(plan) == ["0-both"]
    assert not planned(files("first", "second"), request, table=Granularity.MONTH).runs
    with pytest.raises(InvalidSpec, match="whole chunks"):
        planned(files("both"), replace(SEMI, chunks=("2013-03-02",)), table=Granularity.MONTH)


def test_S21_appends_do_not_keep_a_chunk_from_being_laid_out() -> None:
    """Files that are there when it plans are taken, whatever comes after them."""
    assert taken(planned(files("both", "second"), CUT)) == ["0-both", "1-second"]
    assert taken(planned(files("both", "second", "second"), CUT))[:2] == ["0-both", "1-second"]


def test_a_cut_takes_the_chosen_chunks_and_claims_no_more() -> None:
    plan = planned(files("both", "first"), CUT)
    assert taken(plan) == ["0-both"]
    assert plan.runs[0].interval == SECOND
    assert taken_intervals(CUT, Granularity.DAY) == IntervalSet([SECOND])
    assert taken_intervals(replace(CUT, chunks=()), Granularity.DAY) is None


@pytest.mark.parametrize(("cardinality", "again"), [(500, False), (501, True)])
def test_what_was_cut_out_is_not_cut_again(cardinality: int, again: bool) -> None:
    """As long as the hint is valid: it was written for a smaller vector, or one of that size."""
    hint = {TAG_MASKED: format_masked(IntervalSet([SECOND]), cardinality)}
    file = add_file("f", rows=1000, deleted=500, times=TIMES["both"], tags=hint)
    assert bool(planned([file], CUT).runs) is again
    other = replace(CUT, chunks=("2013-03-01",))
    assert planned([file], other).runs


def test_full_files_are_left_alone_unless_they_span_a_border() -> None:
    full = 128 * MIB
    assert not planned(files("second", size=full), CUT).runs
    assert taken(planned(files("both", "second", size=full), CUT)) == ["0-both"]


def test_without_borders_a_plan_is_as_before() -> None:
    found = files("both", "second")
    plan = plan_compaction(
        segments(found, TimeColumn(("t",), Granularity.DAY)),
        replace(SEMI, chunks=("2013-03-02",)),
        granularity=Granularity.DAY,
    )
    assert plan.runs[0].interval == TimeInterval(SECOND.start_ms - 86_400_000, SECOND.end_ms)
