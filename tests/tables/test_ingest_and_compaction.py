"""Druid's scenarios D1 to D20 and D23: ingests and compactions, each ending well or not.

An ingest or compaction that fails has done all of its work: its files lie there when its job
dies, so that what must not become visible could.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from support.jobs.runners import dies_after_its_work, dies_before_its_work
from support.lake.held import Held
from support.lake.lake import Lake, Lakes, batch, loads
from support.lake.rows import Rows, join
from tandem.operations.machine.events import Point
from tandem.spec.resources import Operation
from tandem.spec.status import Phase

OLD = loads(range(4))
"""What s1 holds: four loads, which the compaction turns into s2, segment 0.1."""
NEW = batch(7)
"""What s3 brings."""
NOTHING: Rows = ()


def _fails(lake: Lake, operation: Operation) -> None:
    lake.jobs.next_job = dies_after_its_work
    assert lake.run(operation).phase is Phase.FAILED


def _start_failing(lake: Lake, operation: Operation) -> Held:
    lake.jobs.next_job = dies_after_its_work
    return lake.hold(operation, Point.POLL_JOB)


def _start(lake: Lake, operation: Operation) -> Held:
    return lake.hold(operation, Point.RECONCILE)


def test_D1_ingest_succeeds_and_is_visible(lakes: Lakes) -> None:
    lake = lakes.empty()
    lake.load(batch(0))
    assert lake.names == ["0"]
    lake.assert_states(NOTHING, batch(0))


@pytest.mark.parametrize("death", [dies_before_its_work, dies_after_its_work])
def test_D2_ingest_fails_and_shows_nothing(lakes: Lakes, death: Callable[..., None]) -> None:
    lake = lakes.empty()
    lake.jobs.next_job = death
    assert lake.run(lake.ingest(batch(0))).phase is Phase.FAILED
    assert lake.names == []
    lake.assert_states(NOTHING)


def test_D3_second_ingest_succeeds(lakes: Lakes) -> None:
    lake = lakes.empty()
    lake.load(batch(0), batch(1))
    assert lake.names == ["0", "1"]
    lake.assert_states(NOTHING, batch(0), loads([0, 1]))


def test_D4_second_ingest_fails(lakes: Lakes) -> None:
    lake = lakes.empty()
    lake.load(batch(0))
    _fails(lake, lake.ingest(batch(1)))
    assert lake.names == ["0"]
    lake.assert_states(NOTHING, batch(0))


@pytest.mark.part(2)
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_D5_two_ingests_in_either_order(lakes: Lakes, order: tuple[int, int]) -> None:
    lake = lakes.empty()
    jobs = [lake.hold(lake.ingest(batch(number)), Point.PUT_COMMIT) for number in (0, 1)]
    for number in order:
        jobs[number].succeed()
    assert lake.names == ["0", "1"]  # numbers are given out in the order of commits
    lake.assert_states(NOTHING, batch(order[0]), loads([0, 1]))


@pytest.mark.parametrize(("dies", "scenario"), [(0, "D6"), (1, "D7")])
def test_D6_D7_D8_one_of_two_ingests_dies_and_a_third_comes(
    lakes: Lakes, dies: int, scenario: str
) -> None:
    lake = lakes.empty()
    lives = 1 - dies
    running: dict[int, Held] = {}
    for number in (0, 1):
        begin = _start_failing if number == dies else _start
        running[number] = begin(lake, lake.ingest(batch(number)))
    assert running[0].finish().phase is (Phase.FAILED if dies == 0 else Phase.SUCCEEDED)
    assert running[1].finish().phase is (Phase.FAILED if dies == 1 else Phase.SUCCEEDED)
    assert lake.names == ["0"]
    lake.assert_states_so_far(NOTHING, batch(lives))
    lake.load(batch(2))
    assert lake.names == ["0", "1"]
    lake.assert_states(NOTHING, batch(lives), loads([lives, 2]))


def test_D6_first_of_two_ingests_dies(lakes: Lakes) -> None:
    lake = lakes.empty()
    first = _start_failing(lake, lake.ingest(batch(0)))
    lake.load(batch(1))
    assert first.finish().phase is Phase.FAILED
    lake.assert_states(NOTHING, batch(1))


def test_D7_second_of_two_ingests_dies(lakes: Lakes) -> None:
    lake = lakes.empty()
    first = _start(lake, lake.ingest(batch(0)))
    _fails(lake, lake.ingest(batch(1)))
    first.succeed()
    lake.assert_states(NOTHING, batch(0))


def test_D8_third_ingest_after_one_died(lakes: Lakes) -> None:
    lake = lakes.empty()
    _fails(lake, lake.ingest(batch(0)))
    lake.load(batch(1), batch(2))
    assert lake.names == ["0", "1"]
    lake.assert_states(NOTHING, batch(1), loads([1, 2]))


def test_D9_a_stream_goes_on_while_its_rows_are_compacted(lakes: Lakes) -> None:
    """Every append is there once: before, in the moment of, and after its hand-off."""
    lake = lakes.empty()
    states = [NOTHING]

    def stream(numbers: range) -> None:
        for number in numbers:
            lake.append(batch(number, 2))
            states.append(join(states[-1], batch(number, 2)))

    stream(range(4))
    compaction = lake.hold(lake.compaction(), Point.PERSIST_PLAN)
    for at in (Point.START_JOB, Point.READ_RESULT, Point.PUT_COMMIT):
        compaction.go_on(at)
        stream(range(len(states) - 1, len(states) + 1))
    compaction.finish()
    stream(range(len(states) - 1, len(states)))
    assert lake.names[0] == "0.1"
    assert len(lake.live) == 1 + 7
    lake.assert_states(*states)


def test_D10_compaction_running_hides_nothing(lakes: Lakes) -> None:
    lake = lakes.loaded(4)
    compaction = _start(lake, lake.compaction())
    assert lake.unreachable()  # its output exists …
    lake.assert_states_so_far(OLD)  # … and no reader sees it
    assert lake.names == ["0", "1", "2", "3"]
    compaction.finish()


def test_D11_compaction_succeeds_and_shows_its_segment(lakes: Lakes) -> None:
    lake = lakes.loaded(4)
    lake.do(lake.compaction())
    assert lake.names == ["0.1"]
    lake.assert_states(OLD)


def test_D12_compaction_fails_and_shows_nothing(lakes: Lakes) -> None:
    lake = lakes.loaded(4)
    _fails(lake, lake.compaction())
    assert lake.names == ["0", "1", "2", "3"]
    lake.assert_states(OLD)


def test_D13_ingest_after_compaction(lakes: Lakes) -> None:
    lake = lakes.loaded(4)
    lake.do(lake.compaction())
    lake.load(NEW)
    assert lake.names == ["0.1", "4"]
    lake.assert_states(OLD, join(OLD, NEW))


def test_D14_ingest_after_failed_compaction(lakes: Lakes) -> None:
    lake = lakes.loaded(4)
    _fails(lake, lake.compaction())
    lake.load(NEW)
    assert lake.names == ["0", "1", "2", "3", "4"]
    lake.assert_states(OLD, join(OLD, NEW))


@pytest.mark.part(2)
@pytest.mark.whole
@pytest.mark.parametrize("commits_first", ["ingest", "compaction"])
def test_D15_compaction_starts_first_both_succeed(lakes: Lakes, commits_first: str) -> None:
    lake = lakes.loaded(4)
    compaction = _start(lake, lake.compaction())
    ingest = _start(lake, lake.ingest(NEW))
    _both_succeed(lake, compaction, ingest, commits_first)


@pytest.mark.parametrize("commits_first", ["ingest", "compaction"])
def test_D18_ingest_starts_first_both_succeed(lakes: Lakes, commits_first: str) -> None:
    lake = lakes.loaded(4)
    ingest = _start(lake, lake.ingest(NEW))
    compaction = _start(lake, lake.compaction())
    _both_succeed(lake, compaction, ingest, commits_first)


def _both_succeed(lake: Lake, compaction: Held, ingest: Held, commits_first: str) -> None:
    order = [ingest, compaction] if commits_first == "ingest" else [compaction, ingest]
    for each in order:
        each.succeed()
    assert lake.names == ["0.1", "4"]
    lake.assert_states(OLD, join(OLD, NEW))


def test_D16_compaction_starts_first_ingest_fails(lakes: Lakes) -> None:
    lake = lakes.loaded(4)
    compaction = _start(lake, lake.compaction())
    _fails(lake, lake.ingest(NEW))
    compaction.succeed()
    assert lake.names == ["0.1"]
    lake.assert_states(OLD)


def test_D17_compaction_first_compaction_fails(lakes: Lakes) -> None:
    lake = lakes.loaded(4)
    compaction = _start_failing(lake, lake.compaction())
    lake.load(NEW)
    assert compaction.finish().phase is Phase.FAILED
    assert lake.names == ["0", "1", "2", "3", "4"]  # s1 stays, where Druid lost it
    lake.assert_states(OLD, join(OLD, NEW))


def test_D19_ingest_starts_first_ingest_fails(lakes: Lakes) -> None:
    lake = lakes.loaded(4)
    ingest = _start_failing(lake, lake.ingest(NEW))
    lake.do(lake.compaction())
    assert ingest.finish().phase is Phase.FAILED
    assert lake.names == ["0.1"]
    lake.assert_states(OLD)


def test_D20_ingest_starts_first_compaction_fails(lakes: Lakes) -> None:
    lake = lakes.loaded(4)
    ingest = _start(lake, lake.ingest(NEW))
    _fails(lake, lake.compaction())
    ingest.succeed()
    assert lake.names == ["0", "1", "2", "3", "4"]
    lake.assert_states(OLD, join(OLD, NEW))


def test_D23_nothing_is_renamed_on_the_way_to_a_commit(lakes: Lakes) -> None:
    """Data lies at its final place before the commit, which is one new file of the log."""
    lake = lakes.loaded(4)
    compaction = lake.hold(lake.compaction(), Point.PUT_COMMIT)
    before = _inodes(lake)
    compaction.go_on(Point.PUT_COMMIT, after=True)
    after = _inodes(lake)
    assert after.keys() - before.keys() == {f"_delta_log/{lake.version:020d}.json"}
    assert {path: after[path] for path in before} == before
    assert {add.path for add in lake.commit().adds} <= before.keys()
    compaction.finish()
    lake.assert_states(OLD)


def _inodes(lake: Lake) -> dict[str, tuple[int, int]]:
    found = {}
    for path in lake.path.rglob("*"):
        if path.is_file():
            stat = path.stat()
            found[str(path.relative_to(lake.path))] = (stat.st_ino, stat.st_mtime_ns)
    return found
