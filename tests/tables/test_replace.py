"""Druid's scenarios of replacement on real tables: D24 to D44, D47 to D51, D53, D56 to D60.

s1 is what the table had, sr the rows of a replace, sj those of an ingest, sc a compaction's output.
Each order of commits, each failure; both scopes where they differ; with and without deletion
vectors; files that lie within a day, and files that straddle. deltalake is the second reader.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from deltalake import write_deltalake

from support.jobs import quick_lake
from support.jobs.runners import dies_after_its_work
from support.lake.lake import Lakes, message, reason, result
from support.lake.timed import TimedLake, day, hours, interval, join, without
from support.lake.timed import table as rows_of
from support.present import present
from tables.replaced import ALIGNED, DAY_2, MORE, REST, S1, SJ, SR, alone, made
from tandem.delta.actions import AddFile
from tandem.delta.partitions import NULL_PARTITION
from tandem.locks.store import InProcessLocks
from tandem.operations.clean_facts import listed
from tandem.operations.machine.events import Point
from tandem.planning.cleaning import FileCategory
from tandem.spec.resources import Operation
from tandem.spec.status import OperationStatus, Phase
from tandem.text import human_bytes
from tandem.timeline.chunks import TAG_MASKED, parse_masked

LAYOUTS = pytest.mark.parametrize(
    "layout", ["straddling", "aligned", "aligned, no vectors", "straddling, no vectors"]
)
SCOPES = pytest.mark.parametrize("scope", ["AtStart", "AtCommit"])


def masked_in(add: AddFile) -> str:
    """What the hint in a file's tags says (D58)."""
    hidden = add.deletion_vector.cardinality if add.deletion_vector is not None else 0
    return str(parse_masked(add.tags[TAG_MASKED], hidden))


def fails(table: TimedLake, operation: Operation) -> None:
    table.lake.jobs.next_job = dies_after_its_work
    assert table.lake.run(operation).phase is Phase.FAILED


def replaced(status: OperationStatus) -> tuple[int, int | None]:
    did = present(result(status).replaced)
    return did.rows, did.late


@LAYOUTS
@SCOPES
def test_D25_a_replacement_succeeds(lakes: Lakes, layout: str, scope: str) -> None:
    table = made(lakes, layout)
    done = table.lake.do(table.replace(DAY_2, rows=SR, scope=scope))
    table.assert_shows(REST, SR)
    table.assert_history(S1, join(REST, SR))
    assert replaced(done) == (24, 0 if scope == "AtStart" else None)


@LAYOUTS
def test_D26_a_replacement_fails(lakes: Lakes, layout: str) -> None:
    table = made(lakes, layout)
    fails(table, table.replace(DAY_2, rows=SR))
    table.assert_shows(S1)
    table.assert_history(S1)


@LAYOUTS
def test_D27_D28_where_the_source_has_no_rows_the_scope_ends_empty(
    lakes: Lakes, layout: str
) -> None:
    table = made(lakes, layout)
    source = hours(day(1), day(3), first=1_000)
    table.lake.do(table.replace("2013-03-01/2013-03-04", rows=source))
    table.assert_shows(source)
    table.assert_history(S1, source)


@pytest.mark.part(3)
@LAYOUTS
@SCOPES
@pytest.mark.parametrize("first", ["replacement", "ingest"])
def test_D29_D48_D49_D51_an_ingest_beside_a_replacement(
    lakes: Lakes, layout: str, scope: str, first: str
) -> None:
    """As D32, D34 and D43: with AtCommit an append that commits first is replaced."""
    table = made(lakes, layout)
    held = alone(table, table.replace(DAY_2, rows=SR, scope=scope))
    if first == "ingest":
        table.lake.do(table.ingest(SJ))
    done = held.succeed()
    if first == "replacement":
        table.lake.do(table.ingest(SJ))
    late = {} if first == "ingest" and scope == "AtCommit" else SJ
    table.assert_shows(REST, SR, late)
    if first == "ingest":
        table.assert_history(S1, join(S1, SJ), join(REST, SR, late))
        assert replaced(done) == ((24, 6) if late else (30, None))
    else:
        table.assert_history(S1, join(REST, SR), join(REST, SR, SJ))


@SCOPES
def test_D30_D32_D50_the_replacement_fails_beside_an_ingest(lakes: Lakes, scope: str) -> None:
    table = made(lakes)
    table.lake.jobs.next_job = dies_after_its_work
    held = table.lake.hold(table.replace(DAY_2, rows=SR, scope=scope), Point.POLL_JOB)
    table.lake.do(table.ingest(SJ))
    assert held.finish().phase is Phase.FAILED
    table.assert_shows(S1, SJ)
    table.assert_history(S1, join(S1, SJ))


@SCOPES
def test_D31_D33_D34_the_ingest_fails_and_runs_again(lakes: Lakes, scope: str) -> None:
    """The result does not depend on luck: the rerun commits after the replacement."""
    table = made(lakes)
    fails(table, table.ingest(SJ))
    table.lake.do(table.replace(DAY_2, rows=SR, scope=scope))
    fails(table, table.ingest(SJ))
    table.assert_shows(REST, SR)
    table.lake.do(table.ingest(SJ))
    table.assert_history(S1, join(REST, SR), join(REST, SR, SJ))


@pytest.mark.part(2)
@SCOPES
@pytest.mark.parametrize("commits_first", ["compaction", "replacement"])
@pytest.mark.parametrize("starts_first", ["compaction", "replacement"])
def test_D35_D38_D44_a_compaction_beside_a_replacement(
    lakes: Lakes, scope: str, commits_first: str, starts_first: str
) -> None:
    """Never original → replacement → original (I-12)."""
    table = TimedLake.of(lakes, *ALIGNED, MORE)
    before = join(S1, MORE)
    operations = {
        "compaction": table.lake.compaction("Major"),
        "replacement": table.replace(DAY_2, rows=SR, scope=scope),
    }
    started = sorted(operations, key=lambda name: name != starts_first)
    held = {name: alone(table, operations[name]) for name in started}
    for name in sorted(held, key=lambda name: name != commits_first):
        assert held[name].finish().phase in (Phase.SUCCEEDED, Phase.SUPERSEDED)
    table.assert_shows(REST, SR)
    table.assert_history(before, join(REST, SR))


@pytest.mark.parametrize("which", ["compaction", "replacement"])
def test_D36_D37_D39_D40_one_of_the_two_fails(lakes: Lakes, which: str) -> None:
    table = TimedLake.of(lakes, *ALIGNED, MORE)
    if which == "replacement":
        held = alone(table, table.lake.compaction("Major"))
        fails(table, table.replace(DAY_2, rows=SR))
        held.succeed()
        table.assert_shows(S1, MORE)
        table.assert_history(join(S1, MORE))
        return
    table.lake.jobs.next_job = dies_after_its_work
    held = alone(table, table.lake.compaction("Major"), Point.POLL_JOB)
    table.lake.do(table.replace(DAY_2, rows=SR))
    assert held.finish().phase is Phase.FAILED
    table.assert_shows(REST, SR)
    table.assert_history(join(S1, MORE), join(REST, SR))


def test_D41_hours_replace_a_day(lakes: Lakes) -> None:
    table = made(lakes)
    for hour in day(2):
        rows = hours(hour, hour, first=1_000 + 2 * hour)
        table.lake.do(table.replace(interval(hour, hour + 1), rows=rows))
    new = join(*(hours(hour, hour, first=1_000 + 2 * hour) for hour in day(2)))
    table.assert_shows(REST, new)


@LAYOUTS
def test_D42_three_hours_of_a_day_of_which_one_is_empty(lakes: Lakes, layout: str) -> None:
    table = made(lakes, layout)
    source = hours(45, 47, first=1_000)
    table.lake.do(table.replace(interval(45, 48), rows=source))
    table.assert_shows(without(S1, range(45, 48)), source)
    adds = [add for add in table.lake.log.snapshot().adds() if TAG_MASKED in add.tags]
    assert [masked_in(add) for add in adds] == [interval(45, 48)]
    assert [add.deletion_vector is None for add in adds] == ["no vectors" in layout]


@SCOPES
def test_D43_two_replacements_one_waits_and_replaces_the_other(lakes: Lakes, scope: str) -> None:
    """By locks the second one takes its cutoff after the first one's commit."""
    table = made(lakes)
    other = hours(range(40, 44), first=3_000)
    first = table.lake.hold(table.replace(DAY_2, rows=SR, scope=scope), Point.PUT_COMMIT)
    second = table.lake.hold(table.replace(DAY_2, rows=other, scope=scope), Point.AWAIT_LOCKS)
    first.succeed()
    second.succeed()
    table.assert_shows(REST, other)
    table.assert_history(S1, join(REST, SR), join(REST, other))


@SCOPES
def test_D43_without_locks_it_is_a_conflict_or_replaces(lakes: Lakes, scope: str) -> None:
    table = made(lakes)
    other = hours(range(40, 44), first=3_000)
    held = alone(table, table.replace(DAY_2, rows=other, scope=scope))
    first = table.lake.do(table.replace(DAY_2, rows=SR), ports=table.lake.ports())
    status = held.finish()
    if scope == "AtCommit":
        table.assert_shows(REST, other)
        return
    assert reason(status) == "Conflict"
    assert f"version {result(first).version}" in message(status)
    assert "AtCommit" in message(status)
    assert "it takes a new start, and replaces all rows that came before that" in message(status)
    table.assert_shows(REST, SR)


def test_D44_two_replacements_of_disjoint_hours_beside_a_compaction(lakes: Lakes) -> None:
    table = TimedLake.of(lakes, *ALIGNED, MORE)
    one, two = hours(24, 25, first=1_000), hours(46, first=1_100)
    compaction = alone(table, table.lake.compaction("Major"))
    first = alone(table, table.replace(interval(24, 28), rows=one))
    second = alone(table, table.replace(interval(45, 48), rows=two))
    for held in (first, compaction, second):
        held.succeed()
    table.assert_shows(without(join(S1, MORE), range(24, 28), range(45, 48)), one, two)


def test_D47_a_segment_is_repaired(lakes: Lakes) -> None:
    """Its file goes whole, unread: it may be damaged."""
    table = TimedLake.of(lakes, *ALIGNED)
    damaged = table.lake.live[1]
    path = table.lake.path / damaged.files[0].path
    path.write_bytes(b"no parquet")
    done = table.lake.do(table.replace(replaced={"segments": [damaged.name]}, rows=SR))
    table.assert_shows(REST, SR)
    assert replaced(done) == (24, 0)


def test_D47_a_segment_that_was_compacted_is_no_longer_there(lakes: Lakes) -> None:
    table = TimedLake.of(lakes, *ALIGNED, MORE)
    name = table.lake.names[1]
    table.lake.do(table.lake.compaction("SemiMajor"))
    status = table.lake.run(table.replace(replaced={"segments": [name]}, rows=SR))
    assert reason(status) == "UnknownSegment"
    table.assert_shows(S1, MORE)


def test_D47_rows_of_a_segment_are_followed_into_a_compaction(lakes: Lakes) -> None:
    table = TimedLake.of(lakes, *ALIGNED, MORE)
    held = alone(table, table.replace(replaced={"segments": [table.lake.names[1]]}, rows=SR))
    table.lake.do(table.lake.compaction("SemiMajor"))
    done = held.succeed()
    assert replaced(done) == (24, 0)
    table.assert_shows(REST, MORE, SR)


def test_D58_masks_of_two_replaces_leave_three_pieces(lakes: Lakes) -> None:
    """The hint names both, and none that a late row contradicts."""
    table = TimedLake.of(lakes, hours(day(2), first=0))
    table.lake.do(table.replace(interval(28, 30)))
    table.lake.do(table.replace(interval(40, 42)))
    [add] = table.lake.log.snapshot().adds()
    assert masked_in(add) == f"{interval(28, 30)}, {interval(40, 42)}"
    table.assert_shows(without(hours(day(2), first=0), range(28, 30), range(40, 42)))


def test_D58_a_mask_that_leaves_late_rows_is_not_named(lakes: Lakes) -> None:
    table = TimedLake.of(lakes, hours(day(2), first=0))
    held = alone(table, table.replace(interval(28, 42)))
    table.append(hours(day(2), first=100))
    table.lake.do(table.lake.compaction("SemiMajor"))
    held.succeed()
    [add] = table.lake.log.snapshot().adds()
    assert TAG_MASKED not in add.tags
    table.assert_shows(without(hours(day(2), first=0), range(28, 42)), hours(day(2), first=100))


def test_D53_two_masks_combine_and_the_file_leaves(lakes: Lakes) -> None:
    table = TimedLake.of(lakes, hours(day(2), first=0))
    table.lake.do(table.replace(interval(24, 36)))
    assert len(table.lake.live) == 1
    table.lake.do(table.replace(interval(36, 48)))
    assert table.lake.live == []
    table.assert_history(hours(day(2), first=0), hours(range(36, 48), first=12), {})


@LAYOUTS
def test_D60_a_drop_starts_no_job(lakes: Lakes, layout: str) -> None:
    table = made(lakes, layout)
    version = table.lake.version
    done = table.lake.do(table.replace(DAY_2))
    assert table.lake.jobs.started == []
    assert table.lake.version == version + 1
    info = present(table.lake.commit().info)
    assert info.operation == "DELETE"
    assert replaced(done) == (24, 0)
    removed = result(done).files_removed
    assert removed == (0 if layout == "straddling" else 1)
    table.assert_history(S1, REST)


# What the addendum says beside the scenarios


def test_I_54_a_process_that_takes_over_has_the_same_cutoff(lakes: Lakes) -> None:
    """Rows that come after the first attempt began are late for the second one, too."""
    table = made(lakes)
    table.lake.backoff_limit = 1
    operation = table.replace(DAY_2, rows=SR)
    table.lake.hold(operation, Point.START_JOB).kill()
    table.append(SJ)
    table.lake.jobs = table.lake.new_jobs()
    done = table.lake.do(operation, ports=table.lake.ports(locks=InProcessLocks()))
    assert done.attempt == 2
    assert replaced(done) == (24, 6)
    table.assert_shows(REST, SR, SJ)


@pytest.mark.parametrize("at", [Point.PERSIST_PLAN, Point.READ_RESULT, Point.PUT_COMMIT])
def test_a_drop_is_taken_over(lakes: Lakes, at: Point) -> None:
    table = made(lakes)
    operation = table.replace(DAY_2)
    table.lake.hold(operation, at, after=True).kill()
    table.append(SJ)
    done = table.lake.do(operation, ports=table.lake.ports(locks=InProcessLocks()))
    assert replaced(done)[0] == 24
    table.assert_shows(REST, SJ)


def test_start_version_replaces_what_that_version_showed(lakes: Lakes) -> None:
    table = made(lakes)
    start = table.lake.version
    table.append(SJ)
    done = table.lake.do(table.replace(DAY_2, rows=SR, startVersion=start))
    assert replaced(done) == (24, 6)
    table.assert_shows(REST, SR, SJ)


def test_an_update_moves_rows_out_of_the_scope_and_into_it(lakes: Lakes) -> None:
    """Scope is asked of the row as it is when the replace commits (I-53)."""
    table = made(lakes)
    held = alone(table, table.replace(DAY_2, rows=SR))
    for id_, time in ((30, "2013-03-09"), (1, "2013-03-02")):
        table.lake.foreign().update(predicate=f"id = {id_}", updates={"ts": f"'{time}T00:00:00Z'"})
    done = held.succeed()
    moved = {30: 8 * 24}
    table.assert_shows({i: h for i, h in REST.items() if i != 1}, moved, SR)
    assert replaced(done) == (24, 0)


@pytest.mark.parametrize("foreign", ["optimize", "merge", "overwrite", "restore"])
def test_rows_of_unknown_age_are_a_conflict(lakes: Lakes, foreign: str) -> None:
    table = made(lakes)
    held = alone(table, table.replace(DAY_2, rows=SR))
    table.append(SJ)
    other = table.lake.foreign()
    if foreign == "optimize":
        other.optimize.compact()
    elif foreign == "merge":
        merge = other.merge(rows_of(hours(30, 31, first=2_000)), "t.id = s.id", "s", "t")
        merge.when_matched_update_all().execute()
    elif foreign == "overwrite":
        write_deltalake(other, rows_of(SJ), mode="overwrite")
    else:
        other.restore(table.lake.version - 1)
        other.restore(table.lake.version - 1)
    shown = table.rows()
    version = table.lake.version
    status = held.finish()
    if foreign == "restore":
        # It brought back what the append had added: those rows have their age.
        assert status.phase is Phase.SUCCEEDED
        table.assert_shows(REST, SR, SJ)
        return
    assert reason(status) == "Conflict"
    assert table.rows() == shown
    assert table.lake.version == version + 1  # the attempt is abandoned


def test_rows_without_a_time_are_in_no_interval_but_all(lakes: Lakes) -> None:
    table = TimedLake.of(lakes, S1, {900: None, 901: None}, {902: None, 903: 30})
    table.lake.do(table.replace(DAY_2, rows=SR))
    table.assert_shows(REST, SR, {900: None, 901: None, 902: None})
    table.lake.do(table.replace("all"))
    table.assert_shows({})


def test_the_partition_of_null(lakes: Lakes) -> None:
    table = TimedLake.of(lakes, S1, {900: None, 901: None}, partitioned=True)
    table.lake.do(table.replace(replaced={"partitions": [{"DAY": NULL_PARTITION}]}))
    table.assert_shows(S1)


def test_a_partition_names_each_column_once(lakes: Lakes) -> None:
    """Of two values, one would have decided what goes, and the other what may come."""
    table = TimedLake.of(lakes, S1, partitioned=True)
    two = {"day": DAY_2, "Day": "2013-03-01"}
    status = table.lake.run(table.replace(replaced={"partitions": [two]}))
    assert reason(status) == "InvalidSpec"
    assert "spec.replace.partitions[0].Day" in message(status)
    table.assert_shows(S1)


def test_a_file_that_cannot_go_whole_is_rewritten_without_vectors(lakes: Lakes) -> None:
    table = TimedLake.of(lakes, S1, vectors=False)
    plan = present(table.lake.run(table.replace(DAY_2, dryRun=True)).plan)
    size = human_bytes(plan.input_bytes)
    assert plan.edits is not None
    assert plan.edits.startswith(f"rewrites up to 1 file ({size}), those with a row in scope: ")
    assert f"others are encoded, up to {size}. With deletion vectors" in plan.edits
    assert replaced(table.lake.do(table.replace(DAY_2))) == (24, 0)
    table.assert_shows(REST)


def test_where_vectors_alone_are_allowed_a_file_that_cannot_go_whole_is_refused_with_a_remedy(
    lakes: Lakes,
) -> None:
    table = TimedLake.of(lakes, S1, vectors=False)
    table.lake.vectors = "Only"
    plan = present(table.lake.run(table.replace(DAY_2, dryRun=True)).plan)
    assert "without deletion vectors, they must go whole" in str(plan.steps)
    status = table.lake.run(table.replace(DAY_2))
    assert reason(status) == "DeletionVectorsDisabled"
    assert "Set enableDeletionVectors: true in the LakeTable" in message(status)
    table.assert_shows(S1)


def test_the_table_itself_is_a_source_only_at_a_version(lakes: Lakes) -> None:
    table = made(lakes)
    source = {"format": "Delta", "location": table.lake.location}
    status = table.lake.run(table.replace(DAY_2, source=source))
    assert reason(status) == "InvalidSpec"
    assert "spec.source.version" in message(status)
    table.assert_shows(S1)


def test_the_record_of_the_start_is_cleaned_with_those_of_the_operation(lakes: Lakes) -> None:
    table = made(lakes)
    table.lake.do(table.replace(DAY_2, rows=SR))
    [record] = [m for m in table.lake.store.list("_tandem") if m.path.endswith("/cutoff.json")]
    assert listed(record).part is FileCategory.RECORD


def test_the_result_and_the_message_say_what_was_replaced(lakes: Lakes) -> None:
    table = made(lakes)
    start = table.lake.version
    held = alone(table, table.replace(DAY_2, "2013-03-05"))
    table.append(SJ)
    done = held.finish()
    assert (result(done).summary or ())[1:] == (
        f"dropped {DAY_2} and 2013-03-05 as of version {start}",
        "6 late rows kept",
    )
    assert message(done).endswith("6 late rows kept")
    many = table.lake.do(
        table.replace(*(f"2013-03-{day:02}" for day in range(1, 5)), scope="AtCommit")
    )
    assert (result(many).summary or ())[1:] == ("dropped 4 intervals", "3 chunks left empty")
    assert message(many).endswith(": dropped 4 intervals; 3 chunks left empty")


WRONG: Sequence[tuple[dict[str, object], str, str]] = [
    ({"intervals": ["2013-03-05/2013-03-02"]}, "InvalidSpec", "spec.replace.intervals[0]"),
    ({"intervals": ["2013-03-02/2013-03-02"]}, "InvalidSpec", "spec.replace.intervals[0]"),
    ({"intervals": ["12013-03/12014-03"]}, "InvalidSpec", "spec.replace.intervals[0]"),
    ({"intervals": ["2013-03-02T00:00:00.0005/2013-03-03"]}, "InvalidSpec", "milliseconds"),
    ({"intervals": ["2013-03-02", "2013-13"]}, "InvalidSpec", "spec.replace.intervals[1]"),
    (
        {"intervals": ["2013-03-02T00:00:00.0001Z/2013-03-02T00:00:00.0009Z"]},
        "InvalidSpec",
        "spec.replace.intervals[0]",
    ),
    ({"partitions": [{"id": "7"}]}, "InvalidSpec", "spec.replace.partitions[0].id"),
    ({"segments": ["no-such"]}, "UnknownSegment", "spec.replace.segments"),
]


@pytest.mark.parametrize(("what", "why", "field"), WRONG)
def test_bad_input_writes_nothing(
    lakes: Lakes, what: dict[str, object], why: str, field: str
) -> None:
    table = made(lakes)
    status = table.lake.run(table.replace(replaced=what))
    assert reason(status) == why
    assert field in message(status)
    table.assert_shows(S1)


@pytest.mark.parametrize("recorded", [50, 90])
def test_a_file_of_which_the_log_counts_other_rows_is_not_replaced_in_part(
    lakes: Lakes, recorded: int
) -> None:
    """Those beyond would stay, and the status say that all went."""
    table = made(lakes)
    lake = quick_lake.at(table.lake.location)
    [add] = lake.log.snapshot().adds()
    assert add.stats is not None
    lake.log_again(stats=add.stats.replace('"numRecords":72', f'"numRecords":{recorded}'))
    status = table.lake.run(table.replace("2013-03-03"))
    assert reason(status) == "CountMismatch"
    table.assert_shows(S1)


@pytest.mark.parametrize(
    ("version", "expected"),
    [(99, "at most 1: the latest version is 1"), (0, "a version from 1 to 1, which the log still")],
)
def test_a_start_version_that_is_not_there(lakes: Lakes, version: int, expected: str) -> None:
    table = made(lakes)
    table.lake.foreign().create_checkpoint()
    (table.lake.path / f"_delta_log/{0:020d}.json").unlink()
    status = table.lake.run(table.replace(DAY_2, rows=SR, startVersion=version))
    assert reason(status) == "InvalidSpec"
    assert f"spec.startVersion: the table has no such version (found: {version}; " in message(
        status
    )
    assert f"expected: {expected}" in message(status)


def test_intervals_need_a_time_column(lakes: Lakes) -> None:
    table = made(lakes)
    table.lake.time = None
    status = table.lake.run(table.replace(DAY_2))
    assert reason(status) == "InvalidSpec"
    table.lake.do(table.replace("all"))
    table.assert_shows({})
