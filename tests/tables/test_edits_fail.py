"""N15 and N16: operations that make edits are killed, repeated and lied to, and a vacuum removes
what no version names yet. One result, and no file is left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from support.jobs.quick_lake import QuickLake
from support.lake.faults import Fault, ProcessDied, StrikeOnce
from support.lake.lake import Process, loads, reconciled, result
from support.lake.plain import Case, Hits, assert_edited_out, edited, figures, plain, updates
from support.lake.rewritten import replace_all
from support.lake.rows import id_in, join, k_is, plus, without
from tandem.operations.machine.events import Effect, Event, Point
from tandem.spec.status import Phase

FOUR = loads(range(4))
NEW = ((3, 3, -3), (60, 0, 6))

KINDS: dict[str, Case] = {
    "bin-pack": (lambda lake: lake.compaction(), lambda of: of),
    "sort": (
        lambda lake: lake.compaction("Major", layout={"strategy": "Sort", "columns": ["v"]}),
        lambda of: of,
    ),
    "update": (lambda lake: lake.update("k = 1", v="v + 15"), lambda of: plus(of, k_is(1), 15)),
    "delete": (lambda lake: lake.delete("k = 1"), lambda of: without(of, k_is(1))),
    "merge": (lambda lake: lake.merge(NEW), lambda of: join(without(of, id_in([3, 60])), NEW)),
    "replace": (lambda lake: replace_all(lake, NEW), lambda _: NEW),
}
"""An operation, and the rows after it."""
POINTS = (
    Point.READ_RESULT,
    Point.RECONCILE,
    Point.WRITE_SIDECARS,
    Point.PUT_COMMIT,
    Point.FINISH_JOB,
    Point.CLEAN_UNUSED,
    Point.RECORD_RESULT,
)


@pytest.mark.part(4)
@pytest.mark.parametrize("nth", [1, 2], ids=["first", "second"])
@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("kind", KINDS)
def test_N15_each_step_is_cut_off_lost_or_repeated(
    tmp_path: Path, kind: str, point: Point, fault: Fault, nth: int
) -> None:
    """Another engine changes a file before the first edits are published, so that there are two
    rounds of them."""
    lake = plain(tmp_path)
    lake.backoff_limit = 3
    make, after = KINDS[kind]
    operation = make(lake)
    strike = StrikeOnce(point, fault, nth)
    hits = Hits(updates(lake, 11))

    def interceptor(effect: Effect, call: Callable[[], Event]) -> Event:
        return hits(effect, lambda: strike(effect, call))

    before = lake.version
    try:
        lake.run(operation, interceptor=interceptor)
    except ProcessDied:
        assert fault in (Fault.DIE_BEFORE, Fault.DIE_AFTER)
    done = lake.do(operation)
    rows = plus(FOUR, id_in([11]), 1)
    if hits.done == 0:
        rows = FOUR  # it died before
    expected = after(rows)
    assert_edited_out(lake, expected)
    # It has taken effect once.
    ours = [
        version
        for version in range(before + 1, lake.version + 1)
        if (info := lake.commit(version).info) is not None
        and (info.body.get("tandem") or {}).get("result") is not None
    ]
    assert ours == [result(done).version]


@pytest.mark.parametrize("at", [Point.RECONCILE, Point.WRITE_SIDECARS, Point.PUT_COMMIT])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "replace"])
def test_N15_two_processes_make_the_same_edits(tmp_path: Path, kind: str, at: Point) -> None:
    """One only seemed dead, and goes on once the other has committed and cleaned up: what it wrote
    since is deleted, too."""
    lake = plain(tmp_path)
    lake.backoff_limit = 3
    make, after = KINDS[kind]
    operation = make(lake)
    first, second = (lake.ports(processes=Process(pid, {2})) for pid in (1, 2))
    zombie = lake.hold(operation, Point.READ_RESULT, ports=first)
    lake.foreign().update({"v": "v + 1"}, predicate="id = 11")
    zombie.go_on(at)
    lake.foreign().update({"v": "v + 1"}, predicate="id = 21")
    done = lake.do(operation, ports=second)
    late = zombie.finish()
    assert lake.unreachable() == set()
    assert late.phase is Phase.SUCCEEDED
    assert result(late).version == result(done).version
    assert_edited_out(lake, after(plus(FOUR, id_in([11, 21]), 1)))


# N16: vacuum without retention


def vacuum(lake: QuickLake) -> None:
    """All that no version names, at once."""
    lake.foreign().vacuum(
        retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True
    )


@pytest.mark.parametrize("at", [Point.WRITE_SIDECARS, Point.PUT_COMMIT])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "replace"])
def test_N16_a_vacuum_between_an_edit_and_the_put(tmp_path: Path, kind: str, at: Point) -> None:
    lake = plain(tmp_path)
    lake.backoff_limit = 3
    make, after = KINDS[kind]
    held = lake.hold(make(lake), Point.READ_RESULT)
    lake.foreign().update({"v": "v + 1"}, predicate="id = 11")
    held.go_on(at, after=at is Point.WRITE_SIDECARS)
    vacuum(lake)
    done = held.succeed()
    assert done.attempt == 2
    lake.assert_rows(after(plus(FOUR, id_in([11]), 1)))
    assert lake.unreachable() == set()


@pytest.mark.parametrize("kind", ["bin-pack", "update"])
def test_N16_a_vacuum_removes_an_edit_that_is_wanted_again(tmp_path: Path, kind: str) -> None:
    """The edit of a round that was lost, of which nothing has changed since."""
    lake = plain(tmp_path)
    lake.backoff_limit = 3
    make, after = KINDS[kind]
    held = lake.hold(make(lake), Point.READ_RESULT)
    lake.foreign().update({"v": "v + 1"}, predicate="id = 11")
    held.go_on(Point.PUT_COMMIT)
    lake.append(((90, 0, 9),))
    vacuum(lake)
    held.succeed()
    lake.assert_rows(join(after(plus(FOUR, id_in([11]), 1)), ((90, 0, 9),)))
    for add in lake.log.snapshot().adds():
        lake.store.head(add.path)


def test_what_edits_are_left_over_goes_at_the_end(tmp_path: Path) -> None:
    lake = plain(tmp_path)
    hits = Hits(updates(lake, 1, 11, 21))
    done = lake.run(lake.compaction(), interceptor=hits)
    assert done.phase is Phase.SUPERSEDED, done
    assert hits.done == 3
    assert_edited_out(lake, plus(FOUR, id_in([1, 11, 21]), 1))
    hits = Hits(updates(lake, 1))
    done = lake.run(lake.compaction(), interceptor=hits)
    assert figures(reconciled(done)) == edited(1, gone=1)
    assert_edited_out(lake, plus(plus(FOUR, id_in([1, 11, 21]), 1), id_in([1]), 1))
