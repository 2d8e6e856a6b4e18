"""Alignment, granularity and cuts on real tables: D41, D56, S21, S29, Z17 and I-57.

A file of three days is cut at their borders while others write. deltalake is the second reader.
"""

from __future__ import annotations

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from support.lake.lake import Lakes, message, reason, reconciled, result
from support.lake.timed import (
    DAYS,
    SCHEMA,
    TimedLake,
    day,
    hours,
    interval,
    join,
    moment,
    without,
)
from tables.replaced import ALIGNED, DAY_2, S1, SR, alone, made
from tandem.intervals import TimeInterval
from tandem.locks.store import InProcessLocks
from tandem.operations.machine.events import Point
from tandem.spark.runtime import row_files
from tandem.spec.fields import Granularity
from tandem.spec.resources import Operation
from tandem.spec.status import Phase
from tandem.timeline.chunks import TAG_MASKED, parse_chunk, parse_masked
from tandem.timeline.lineage import TAG_ROOT
from tandem.timeline.segments import TAG_SEGMENT


def cut(table: TimedLake, *chunks: str, **more: Any) -> Operation:
    options = {"spanning": "Cut", **({"chunks": list(chunks)} if chunks else {}), **more}
    return table.lake.compaction("SemiMajor", semiMajor=options)


def intervals(table: TimedLake) -> list[TimeInterval | None]:
    """Those of all live files, by their times at the table's granularity."""
    return [file.interval for segment in table.lake.live for file in segment.files]


def days(*numbers: int) -> list[TimeInterval]:
    return [parse_chunk(f"2013-03-{number:02}", Granularity.DAY) for number in numbers]


def test_D56_a_file_lives_on_without_the_day_that_was_cut_out(lakes: Lakes) -> None:
    table = made(lakes)
    done = table.lake.do(cut(table, DAY_2))
    table.assert_shows(S1)
    table.assert_history(S1)
    old, new = sorted(table.lake.log.snapshot().adds(), key=lambda add: not add.deletion_vector)
    assert old.deletion_vector is not None
    assert old.deletion_vector.cardinality == 24
    masked = parse_masked(old.tags[TAG_MASKED], old.deletion_vector.cardinality)
    assert masked.pieces == tuple(days(2))
    assert new.deletion_vector is None
    assert days(2)[0] in intervals(table)
    assert (result(done).files_added, result(done).files_removed) == (1, 0)
    # What is gone is not taken again, although the bounds of the old file still have it.
    again = table.lake.do(cut(table, DAY_2))
    assert again.result is None
    assert len(table.lake.jobs.started) == 1


def test_D56_without_vectors_a_file_is_made_again_without_the_day(lakes: Lakes) -> None:
    table = made(lakes, "straddling, no vectors")
    protocol = table.lake.log.snapshot().protocol
    [old] = table.lake.log.snapshot().adds()
    [name] = table.lake.names
    done = table.lake.do(cut(table, DAY_2))
    table.assert_shows(S1)
    table.assert_history(S1)
    left, new = sorted(table.lake.log.snapshot().adds(), key=lambda add: TAG_MASKED not in add.tags)
    assert not any(add.deletion_vector for add in (left, new))
    assert left.tags[TAG_SEGMENT] == name
    # Its bounds still have the day, and no vector says how many rows of it are hidden.
    assert parse_masked(left.tags[TAG_MASKED], 0).pieces == tuple(days(2))
    assert days(2)[0] in intervals(table)
    assert (result(done).files_added, result(done).files_removed) == (2, 1)
    assert reconciled(done).edit_rounds == 1
    assert table.lake.log.snapshot().protocol == protocol
    assert old.path != left.path
    again = table.lake.do(cut(table, DAY_2))
    assert again.result is None
    assert len(table.lake.jobs.started) == 1


LAYOUTS = pytest.mark.parametrize("layout", ["straddling", "straddling, no vectors"])


@LAYOUTS
def test_D56_the_rest_of_a_file_is_compacted_and_dropped(lakes: Lakes, layout: str) -> None:
    table = made(lakes, layout)
    table.append(hours(day(1), first=500))
    table.lake.first_version = table.lake.version
    before = join(S1, hours(day(1), first=500))
    table.lake.do(cut(table, DAY_2))
    table.lake.do(cut(table, "2013-03-01"))
    table.lake.do(cut(table, "2013-03-03"))
    table.assert_history(before)
    # The old file has no live row any more, and is gone: each day has one file.
    assert sorted(filter(None, intervals(table))) == days(1, 2, 3)
    jobs = len(table.lake.jobs.started)
    table.lake.do(table.replace(DAY_2))
    assert len(table.lake.jobs.started) == jobs
    table.assert_shows(without(before, day(2)))


def test_rows_of_a_file_that_was_cut_have_no_loads_root(lakes: Lakes) -> None:
    """The file still is the only one with the other rows of its load."""
    table = made(lakes)
    table.lake.do(table.ingest(hours(day(2), first=500)))
    table.lake.first_version = table.lake.version
    load = table.lake.names[-1]
    table.lake.do(cut(table, DAY_2))
    table.assert_shows(join(S1, hours(day(2), first=500)))
    [tags] = [add.tags for add in table.lake.log.snapshot().adds() if TAG_ROOT in add.tags]
    assert tags[TAG_ROOT] not in ("0", load)


@pytest.mark.part(3)
@pytest.mark.parametrize("writer", ["our update", "our delete", "deltalake's delete"])
@pytest.mark.parametrize("hour", [5, 30], ids=["stays", "taken"])
@pytest.mark.parametrize("compaction_first", [True, False])
@LAYOUTS
def test_I57_D56_deletes_and_updates_beside_a_cut(
    lakes: Lakes, layout: str, writer: str, hour: int, compaction_first: bool
) -> None:
    table = made(lakes, layout)
    after = {key: value for key, value in S1.items() if value != hour}
    if writer == "our update":
        operation = table.lake.update(f"id = {hour}", id=f"{hour + 9_000}")
        after = {**after, hour + 9_000: hour}
    else:
        operation = table.lake.delete(f"id = {hour}")
    compaction = alone(table, cut(table, DAY_2))
    if writer == "deltalake's delete":
        if compaction_first:
            compaction.succeed()
        # It writes a copy of the file, without the row.
        table.lake.foreign().delete(f"id = {hour}")
    elif compaction_first:
        statement = alone(table, operation)
        compaction.succeed()
        done = statement.succeed()
        assert reconciled(done).rows_evaluated in (None, 0)  # carried through the cut
    else:
        table.lake.do(operation, ports=table.lake.ports(locks=InProcessLocks()))
    if not compaction_first:
        # Without vectors ours makes a new file, too.
        copied = writer == "deltalake's delete" or "no vectors" in layout
        status = compaction.finish()
        assert status.phase is (Phase.SUPERSEDED if copied else Phase.SUCCEEDED)
    table.assert_shows(after)
    table.assert_history(S1, after)


@pytest.mark.parametrize("scope", ["AtStart", "AtCommit"])
@pytest.mark.parametrize("compaction_first", [True, False])
@LAYOUTS
def test_I57_a_replacement_beside_a_cut(
    lakes: Lakes, layout: str, scope: str, compaction_first: bool
) -> None:
    """Ages are carried through the cut: late rows of both halves stay."""
    table = made(lakes, layout)
    new = hours(20, first=1_000)
    replacement = alone(table, table.replace(interval(12, 36), rows=new, scope=scope))
    late = hours(range(10, 60), first=3_000)
    table.append(late)
    compaction = alone(table, cut(table, DAY_2))
    order = [compaction, replacement] if compaction_first else [replacement, compaction]
    for each in order:
        last = each.finish().phase
        # Without vectors a replacement at its commit makes both files again: nothing is left.
        is_late = each is compaction and not compaction_first and scope == "AtCommit"
        copied = is_late and "no vectors" in layout
        assert last is (Phase.SUPERSEDED if copied else Phase.SUCCEEDED)
    left = late if scope == "AtStart" else without(late, range(12, 36))
    after = join(without(S1, range(12, 36)), new, left)
    table.assert_shows(after)
    table.assert_history(S1, join(S1, late), after)


@pytest.mark.parametrize("first", ["2013-03-01", "2013-03-02"])
@LAYOUTS
def test_I57_two_cuts_of_one_file_at_once(lakes: Lakes, layout: str, first: str) -> None:
    table = made(lakes, layout)
    held = {name: alone(table, cut(table, name)) for name in ("2013-03-01", "2013-03-02")}
    done = [held[name].finish() for name in sorted(held, key=lambda name: name != first)]
    table.assert_history(S1)
    if "no vectors" in layout:
        # The first one has made the file again.
        assert [each.phase for each in done] == [Phase.SUCCEEDED, Phase.SUPERSEDED]
        return
    assert [each.phase for each in done] == [Phase.SUCCEEDED, Phase.SUCCEEDED]
    [old] = [add for add in table.lake.log.snapshot().adds() if add.deletion_vector]
    assert old.deletion_vector is not None
    assert old.deletion_vector.cardinality == 48


@LAYOUTS
def test_I57_a_compaction_of_whole_files_beside_a_cut(lakes: Lakes, layout: str) -> None:
    """It has read the file as it was, and masks what the cut has taken."""
    table = made(lakes, layout)
    table.append(hours(day(3), first=500))
    table.lake.first_version = table.lake.version
    before = join(S1, hours(day(3), first=500))
    other = alone(table, table.lake.compaction("Major"))
    table.lake.do(cut(table, DAY_2), ports=table.lake.ports(locks=InProcessLocks()))
    done = other.finish()
    table.assert_history(before)
    if "no vectors" in layout:
        # One of its two files is in another rewrite now.
        assert done.phase is Phase.SUPERSEDED
        return
    assert done.phase is Phase.SUCCEEDED
    assert reconciled(done).deletes_remapped == 24


@LAYOUTS
def test_I57_a_restore_brings_back_a_file_as_it_was_before_the_cut(
    lakes: Lakes, layout: str
) -> None:
    table = made(lakes, layout)
    held = alone(table, cut(table, "2013-03-01"))
    table.lake.do(cut(table, DAY_2), ports=table.lake.ports(locks=InProcessLocks()))
    table.lake.foreign().restore(table.lake.first_version)
    held.succeed()
    table.assert_history(S1)


def test_S21_a_layout_of_a_chunk_beside_appends_succeeds(lakes: Lakes) -> None:
    late = hours(range(30, 36), first=2_000)
    for options in (
        {"semiMajor": {"chunks": [DAY_2], "spanning": "Cut"}},
        {"semiMajor": {"chunks": [DAY_2]}, "layout": {"strategy": "Sort", "columns": ["id"]}},
    ):
        table = made(lakes)
        held = alone(table, table.lake.compaction("SemiMajor", **options))
        table.append(late)
        held.succeed()
        table.assert_shows(S1, late)
        table.assert_history(S1, join(S1, late))


def by_hour(table: TimedLake) -> Operation:
    return table.lake.compaction("SemiMajor", semiMajor={"chunks": [DAY_2], "granularity": "Hour"})


def test_D41_a_day_as_one_segment_of_24_aligned_files(lakes: Lakes) -> None:
    table = TimedLake.of(lakes, *ALIGNED)
    table.lake.do(by_hour(table))
    table.assert_history(S1)
    [segment] = [each for each in table.lake.live if len(each.files) > 1]
    table.lake.time = {**DAYS, "granularity": "Hour"}
    [again] = [each for each in table.lake.live if each.name == segment.name]
    found = sorted(filter(None, (file.interval for file in again.files)))
    start = days(2)[0].start_ms
    assert found == [
        TimeInterval(start + n * 3_600_000, start + (n + 1) * 3_600_000) for n in range(24)
    ]
    table.lake.time = DAYS
    assert table.lake.do(by_hour(table)).result is None  # nothing is left to do


def test_S29_hours_and_days_live_beside_each_other(lakes: Lakes) -> None:
    """Another granularity is a rewrite: no reader sees both, and nothing is exclusive."""
    table = TimedLake.of(lakes, *ALIGNED)
    held = alone(table, by_hour(table))
    table.lake.do(table.lake.update("id = 30", id="9030"))
    after = {**{key: value for key, value in S1.items() if key != 30}, 9_030: 30}
    held.succeed()
    table.append(hours(day(2), first=500))
    mixed = join(after, hours(day(2), first=500))
    table.assert_shows(mixed)
    back = table.lake.compaction("SemiMajor", semiMajor={"chunks": [DAY_2], "granularity": "Day"})
    table.lake.do(back)
    table.assert_history(S1, after, mixed)
    assert len(table.lake.live) == 3


def test_Z17_the_granularity_of_a_table_changes_while_a_cut_runs(lakes: Lakes) -> None:
    """It concerns plans: the one that was made holds, and so do its locks."""
    table = made(lakes)
    held = table.lake.hold(cut(table, DAY_2), Point.RECONCILE)
    table.lake.time = {**DAYS, "granularity": "Month"}
    waits = table.lake.hold(
        table.lake.compaction("SemiMajor", semiMajor={"chunks": ["2013-03"], "granularity": "Day"}),
        Point.AWAIT_LOCKS,
    )
    held.succeed()
    waits.succeed()
    table.assert_history(S1)
    table.lake.time = DAYS
    assert sorted(filter(None, intervals(table))) == days(1, 2, 3)


@pytest.mark.parametrize("field", ["spanning", "granularity"])
def test_without_a_time_column_nothing_can_be_cut(lakes: Lakes, field: str) -> None:
    table = made(lakes)
    table.lake.time = None
    options = {field: "Cut" if field == "spanning" else "Day"}
    status = table.lake.run(table.lake.compaction("SemiMajor", semiMajor=options))
    assert reason(status) == "InvalidSpec"
    assert f"spec.semiMajor.{field}" in message(status)
    assert "spec.time" in message(status)


def test_where_a_lake_table_allows_vectors_alone_nothing_is_cut_without(lakes: Lakes) -> None:
    table = made(lakes, "straddling, no vectors")
    table.lake.vectors = "Only"
    status = table.lake.run(cut(table, DAY_2))
    assert reason(status) == "DeletionVectorsDisabled"
    assert "spec.semiMajor.spanning" in message(status)
    table.assert_history(S1)


# --- Alignment -----------------------------------------------------------------------------------


def test_an_aligned_table_drops_intervals_without_a_job(lakes: Lakes) -> None:
    table = TimedLake.of(lakes)
    table.lake.time = {**DAYS, "align": True}
    rows = join(S1, {900: None})
    table.lake.do(table.ingest(rows))
    assert sorted(filter(None, intervals(table))) == days(1, 2, 3)
    assert intervals(table).count(None) == 1
    jobs = len(table.lake.jobs.started)
    table.lake.do(table.replace(DAY_2))
    assert len(table.lake.jobs.started) == jobs
    table.assert_shows(without(rows, day(2)))


def test_the_last_microsecond_of_a_day_is_of_this_day(lakes: Lakes) -> None:
    """A file that ends with it spans nothing: it is dropped unread, and not divided for ever."""
    table = TimedLake.of(lakes)
    table.lake.time = {**DAYS, "align": True}
    ends = [moment(24 * number) - dt.timedelta(microseconds=1) for number in (1, 2, 3)]
    rows = pa.table([pa.array([0, 1, 2]), pa.array(ends, SCHEMA.field("ts").type)], ["id", "ts"])
    source = {"format": "Parquet", "location": table.lake.source(rows).as_uri()}
    for _ in range(2):
        table.lake.do(table.lake.resource("TableIngest", {"source": source}))
    assert sorted(filter(None, intervals(table))) == sorted(days(1, 2, 3) * 2)
    divided = table.lake.compaction("SemiMajor", semiMajor={"granularity": "Day"})
    assert result(table.lake.do(divided)).files_added == 3
    assert table.lake.do(divided, again=True).result is None
    done = table.lake.do(table.replace(DAY_2))
    assert done.plan is not None
    assert done.plan.inputs == 0


def test_a_replacement_ends_its_files_at_borders(lakes: Lakes) -> None:
    table = TimedLake.of(lakes, *ALIGNED)
    table.lake.time = {**DAYS, "align": True}
    source = hours(day(1), day(2), first=1_000)
    span = "2013-03-01/2013-03-03"
    table.lake.do(table.replace(span, rows=source))
    assert sorted(filter(None, intervals(table))) == days(1, 2, 3)
    new = hours(range(24, 34), first=3_000)
    table.lake.do(table.replace(DAY_2, rows=new, granularity="Hour"))
    assert len(table.lake.live[-1].files) == len(new)
    table.assert_shows(without(source, day(2)), new, without(S1, day(1), day(2)))


def test_a_replacement_without_a_time_column_has_no_borders(lakes: Lakes) -> None:
    table = made(lakes)
    table.lake.time = None
    status = table.lake.run(table.replace("all", rows=SR, granularity="Day"))
    assert reason(status) == "InvalidSpec"
    assert "spec.granularity" in message(status)


def test_beyond_a_thousand_chunks_rows_share_files(
    quick_lakes: Lakes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_files, "MOST_CHUNKS", 2)  # of this process, not of Spark's tasks
    table = TimedLake.of(quick_lakes)
    table.lake.time = {**DAYS, "align": True}
    rows = hours(day(1), day(2), day(3), day(4), first=0)
    done = table.lake.do(table.ingest(rows))
    table.assert_shows(rows)
    [file] = [file for segment in table.lake.live for file in segment.files if file.spans]
    assert file.interval == TimeInterval(days(3)[0].start_ms, days(4)[0].end_ms)
    lines = result(done).summary or ()
    assert any(line.startswith("2 chunks beyond the first 1,000 share files") for line in lines)


@pytest.mark.matrix
@pytest.mark.whole
def test_D56_spark_cuts_and_aligns(lakes: Lakes) -> None:
    table = made(lakes)
    table.lake.do(cut(table, DAY_2))
    table.lake.do(table.lake.delete("id = 30 OR id = 5"))
    table.lake.time = {**DAYS, "align": True}
    late = hours(day(3), day(4), first=500)
    table.lake.do(table.ingest(late))
    after = join(without(S1, [5, 30]), late)
    table.assert_shows(after)
    table.lake.do(cut(table))
    table.assert_shows(after)
    assert sorted(filter(None, intervals(table))) == days(1, 2, 3, 4)


@pytest.mark.parametrize("vectors", ["Auto", "Only"])
def test_deletion_vectors_are_switched_off_while_a_cut_runs(lakes: Lakes, vectors: str) -> None:
    table = made(lakes)
    table.lake.vectors = vectors
    held = alone(table, cut(table, DAY_2))
    table.lake.foreign().alter.set_table_properties({"delta.enableDeletionVectors": "false"})
    status = held.finish()
    assert reason(status) == ("DeletionVectorsDisabled" if vectors == "Only" else "Committed")
    assert not any(add.deletion_vector for add in table.lake.log.snapshot().adds())
    if vectors == "Auto":
        assert days(2)[0] in intervals(table)
    table.assert_history(S1)


def test_a_cut_that_finds_no_row_changes_nothing(lakes: Lakes) -> None:
    """By its bounds the file may have rows of the day in the middle."""
    rows = hours(day(1), day(3), first=0)
    table = TimedLake.of(lakes, rows)
    status = table.lake.run(cut(table, DAY_2))
    assert status.phase is Phase.SUPERSEDED
    assert "no row of its inputs lies in the chunks" in message(status)
    table.assert_history(rows)
