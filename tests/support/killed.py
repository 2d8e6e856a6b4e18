"""Processes that are killed, or stopped for too long, and what must hold afterwards: shared by
what `make test` tries in `tests/crash` and what `make matrix` tries there."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from support.crash import CLEANING, End, Nursery, Order, Strike
from support.crash_table import FIRST, STAGED, CrashTable, after_foreign, expected
from tandem.cli.clean_command import clean
from tandem.cli.output import Output
from tandem.cli.tables import target
from tandem.operations.effects import Point

Tables = Callable[[], CrashTable]
Nurseries = tuple[Nursery, Nursery]
MOST = 60
"""No operation on these tables changes the file system so often."""

STRAIGHT = (
    Point.READ_TABLE,
    Point.CHECK_EARLIER_OUTCOME,
    Point.PLAN,
    Point.CLAIM_ATTEMPT,
    Point.ACQUIRE_LOCKS,
    Point.PERSIST_PLAN,
    Point.START_JOB,
    Point.POLL_JOB,
    Point.READ_RESULT,
    Point.RECONCILE,
    Point.WRITE_SIDECARS,
    Point.ENTER_COMMIT,
    Point.PUT_COMMIT,
    Point.FINISH_JOB,
    Point.STOP_JOB,
    Point.RELEASE_LOCKS,
    Point.CLEAN_UNUSED,
    Point.RECORD_RESULT,
    Point.MAINTAIN,
)
"""Every operation comes by these."""

SECOND_DEATH = {
    Point.FIND_COMMIT: Strike(Point.PUT_COMMIT, after=True),
    Point.ADOPT_ATTEMPT: Strike(Point.READ_RESULT, after=True),
    Point.ABANDON_ATTEMPT: Strike(Point.START_JOB),
    Point.CLEAN_ATTEMPT: Strike(Point.START_JOB),
}
"""Only a restart comes by these; so its predecessor is killed first, there."""

CROWDED: Mapping[Point, Mapping[str, Any]] = {
    Point.AWAIT_LOCKS: {"blocked": True},
    Point.LOOK_UP_COMMIT: {"lost_answer": True},
    Point.REQUEST_ROUND: {"meanwhile": "append"},
}
"""These need somebody else, or a store that loses an answer."""

COMMIT_LOOP = (Point.RECONCILE, Point.WRITE_SIDECARS, Point.ENTER_COMMIT, Point.PUT_COMMIT)
"""Done again for each version that somebody else took."""


def circumstances(point: Point) -> dict[str, Any]:
    """What it takes that an operation comes by a point."""
    if point in SECOND_DEATH:
        return {"first": SECOND_DEATH[point]}
    return dict(CROWDED.get(point, {}))


def die_and_recover(
    nursery: Nursery,
    table: CrashTable,
    kind: str,
    strike: Strike,
    *,
    first: Strike | None = None,
    **circumstances: Any,
) -> None:
    """Kill, look, restart, look, run once more, look."""
    if first is not None:
        assert nursery.run(table.order(kind, strike=first)).killed
    assert nursery.run(table.order(kind, strike=strike, **circumstances)).killed, strike

    meanwhile = str(circumstances.get("meanwhile", ""))
    begun = {FIRST, after_foreign(meanwhile, FIRST)}
    final = expected(kind, after_foreign(meanwhile, FIRST))
    assert table.shown() in {*begun, final}

    end = nursery.run(table.order(kind))
    assert end.signal == 0
    assert end.phase == "Succeeded", end.condition
    assert table.shown() == final
    # No version in between was mixed either.
    assert set(table.history()) <= {*begun, final}
    assert table.unreachable() == set()

    version, files = table.version, table.files()
    again = nursery.run(table.order(kind))
    assert again.status["result"] == end.status["result"]
    assert (table.version, table.files()) == (version, files)


def before_and_after(
    nurseries: Nurseries, tables: Tables, kind: str, point: Point, *, nth: int = 1, **more: Any
) -> None:
    """Both sides of a point, in two processes at once."""
    side_by_side(nurseries, tables, (kind, kind), point, nth=nth, **more)


def side_by_side(
    nurseries: Nurseries,
    tables: Tables,
    kinds: tuple[str, str],
    point: str,
    *,
    nth: int = 1,
    **more: Any,
) -> None:
    """One kind is killed before a point and one after it, in two processes at once."""
    with ThreadPoolExecutor(2) as pool:
        futures = [
            pool.submit(die_and_recover, nursery, tables(), kind, Strike(point, after, nth), **more)
            for nursery, kind, after in zip(nurseries, kinds, (False, True), strict=True)
        ]
    for future in futures:
        future.result()


def recover(nursery: Nursery, table: CrashTable, kind: str, end: End) -> None:
    final = expected(kind, FIRST)
    assert table.shown() in (FIRST, final)
    finished = nursery.run(table.order(kind))
    assert finished.phase == "Succeeded", finished.condition
    assert table.shown() == final
    assert set(table.history()) <= {FIRST, final}
    # Neither whole files that nobody names nor halves of them.
    assert table.unreachable() == set()
    version = table.version
    again = nursery.run(table.order(kind))
    assert again.status["result"] == finished.status["result"]
    assert table.version == version


def strikes_in_turn(nursery: Nursery, tables: Tables, kind: str, numbers: range) -> int:
    """Kill at the n-th change for each number until there is none; how many there were."""
    for struck, number in enumerate(numbers):
        table = tables()
        end = nursery.run(table.order(kind, strike=Strike("disk", nth=number)))
        if not end.killed:
            assert end.phase == "Succeeded", end
            return struck
        recover(nursery, table, kind, end)
    raise AssertionError(f"more than {MOST} changes: raise MOST")


def at_every_change(nurseries: Nurseries, tables: Tables, kind: str) -> int:
    """Kill at every change of the file system; how many there are."""
    with ThreadPoolExecutor(2) as pool:
        odd, even = (
            pool.submit(strikes_in_turn, nursery, tables, kind, range(first, MOST, 2))
            for first, nursery in zip((1, 2), nurseries, strict=True)
        )
    return odd.result() + even.result()


ZOMBIES = (
    Strike(Point.PERSIST_PLAN, signal=signal.SIGSTOP),
    Strike(Point.START_JOB, signal=signal.SIGSTOP),
    Strike("job:written", signal=signal.SIGSTOP),
    Strike("job:published", signal=signal.SIGSTOP),
    Strike(Point.READ_RESULT, signal=signal.SIGSTOP),
    Strike(Point.WRITE_SIDECARS, signal=signal.SIGSTOP),
    Strike(Point.PUT_COMMIT, signal=signal.SIGSTOP),
    Strike(Point.PUT_COMMIT, after=True, signal=signal.SIGSTOP),
    Strike(Point.CLEAN_UNUSED, signal=signal.SIGSTOP),
)


def cleaning(table: CrashTable, strike: Strike | None = None) -> Order:
    """A cleaning for which everything is old."""
    answer = str(table.folder / "answer-cleaning.json")
    return Order(table.path.as_uri(), {"kind": CLEANING}, answer, strike)


def zombie(
    nurseries: Nurseries, table: CrashTable, kind: str, strike: Strike, *, cleaned: bool = False
) -> None:
    """A process of another host is silent, so another takes over and commits. Then the first
    one comes back and goes on where it stood: the operation happened once. `cleaned`: its files
    were taken by a cleaning, before there was a successor and after it."""
    first, second = nurseries
    final = expected(kind, FIRST)
    first.start(table.order(kind, strike=strike, answer="first"))
    first.stopped()
    table.move_claim_to_another_host()
    if cleaned:
        assert second.run(cleaning(table)).phase == "Succeeded"
        assert table.shown() in (FIRST, final)
    end = second.run(table.order(kind, answer="second"))
    assert end.phase == "Succeeded", end.condition
    assert table.shown() == final
    if cleaned:
        assert second.run(cleaning(table)).phase == "Succeeded"
        assert table.unreachable() == set()
    version = table.version

    first.go_on()
    late = first.end()
    assert late.signal == 0
    # Either it learns that it was declared dead, or that the operation has succeeded.
    if late.phase == "Failed":
        assert late.condition["reason"] == "Abandoned"
    else:
        assert late.status["result"] == end.status["result"]
    assert table.version == version
    assert table.shown() == final
    if not cleaned:  # which leaves nothing of the versions before
        assert set(table.history()) <= {FIRST, final}
        # All that the log names is still there, whatever the zombie tidied up.
        assert table.named() - {""} <= table.files().keys()
    # What it wrote after its funeral is a dead attempt's: `tandem clean` takes it.
    assert all("-1" in path for path in table.unreachable())
    clean(target(str(table.path)), output=Output.JSON, dry_run=False)
    assert table.unreachable() == set()
    assert table.shown() == final


def die_while_clearing(nursery: Nursery, tables: Tables, kind: str) -> None:
    """The restart itself dies while it clears away what the first process left."""
    for number in range(1, 6):
        table = tables()
        assert nursery.run(table.order(kind, strike=Strike("job:written"))).killed
        end = nursery.run(table.order(kind, strike=Strike("disk", nth=number)))
        assert end.killed
        recover(nursery, table, kind, end)
        # The log is other people's ground: a name that they might take for a commit never stays.
        log = [p for p in table.files() if p.startswith("_delta_log/") and STAGED not in p]
        assert all(p.endswith((".json", ".parquet", ".crc")) or "_last" in p for p in log)
