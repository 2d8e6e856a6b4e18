"""Processes that are killed, and what must hold afterwards: shared by what `make test` tries in
`tests/crash` and what `make matrix` tries there; `zombies` holds those that come back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from support.cases import EDIT_ALONE, EDITORS
from support.crash.crash_table import (
    FIRST,
    STAGED,
    CrashTable,
    after_foreign,
    expected,
    expected_beside,
    over,
)
from support.crash.processes import CLEANING, End, Order, ProcessStarter, Strike
from support.lake.rows import Rows
from tandem.operations.machine.events import Point

Tables = Callable[[], CrashTable]
ProcessStarters = tuple[ProcessStarter, ProcessStarter]
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
"""Every operation reaches these."""

SECOND_DEATH = {
    Point.FIND_COMMIT: Strike(Point.PUT_COMMIT, after=True),
    Point.ADOPT_ATTEMPT: Strike(Point.READ_RESULT, after=True),
    Point.END_ATTEMPT: Strike(Point.START_JOB),
    Point.ABANDON_ATTEMPT: Strike(Point.START_JOB),
    Point.CLEAN_ATTEMPT: Strike(Point.START_JOB),
}
"""Only a restart reaches these; so its predecessor is killed first, there."""

SUSPENDED = (Point.ABANDON_ATTEMPT, Point.CLEAN_ATTEMPT)
"""Of those, the ones where a restart does something if its resource is suspended."""

CROWDED: Mapping[Point, Mapping[str, Any]] = {
    Point.AWAIT_LOCKS: {"blocked": True},
    Point.LOOK_UP_COMMIT: {"lost_answers": (Point.PUT_COMMIT,)},
    Point.REQUEST_ROUND: {"meanwhile": "append"},
}
"""These need another writer, or a store that loses an answer."""

COMMIT_LOOP = (Point.RECONCILE, Point.WRITE_SIDECARS, Point.ENTER_COMMIT, Point.PUT_COMMIT)
"""Done again for each version that another writer took."""

EDITED_BESIDE = tuple(
    (kind, meanwhile)
    for kind in EDITORS
    for meanwhile in ("update", "delete")
    if (kind, meanwhile) != ("segment rewrite", "update")
)
"""What edits a table without deletion vectors, and what another writer does meanwhile: a file that
it made of others with changed rows a rewrite leaves alone; one that is another one less some rows
it takes. (Of the segment whose rows the update changes nothing is left to rewrite.)"""


def circumstances(point: Point) -> dict[str, Any]:
    """What makes an operation reach a point."""
    if point in SECOND_DEATH:
        suspended = {"suspended": True} if point in SUSPENDED else {}
        return {"first": SECOND_DEATH[point], **suspended}
    return dict(CROWDED.get(point, {}))


def around_edits(kind: str) -> Iterator[tuple[str, int]]:
    """Places around the edits of an operation to which another writer comes, and at which passage.
    Those that edit alone see when they have done so that the other writer was faster; the others
    lose a put, and edit after that."""
    put = 1 if kind in EDIT_ALONE else 2
    yield "edit", 1
    yield from ((Point.RECONCILE, 2), (Point.WRITE_SIDECARS, 2))
    yield from ((Point.ENTER_COMMIT, put), (Point.PUT_COMMIT, put), (Point.CLEAN_UNUSED, 1))


def kill(
    starter: ProcessStarter,
    table: CrashTable,
    kind: str,
    strike: Strike,
    first: Strike | None,
    **circumstances: Any,
) -> None:
    """Kill a process, after its predecessor if `first` says where that one dies."""
    if first is not None:
        assert starter.run(table.order(kind, strike=first)).killed
    assert starter.run(table.order(kind, strike=strike, **circumstances)).killed, strike


def die_and_recover(
    starter: ProcessStarter,
    table: CrashTable,
    kind: str,
    strike: Strike,
    *,
    first: Strike | None = None,
    **circumstances: Any,
) -> None:
    """Kill, look, restart, look, run once more, look."""
    kill(starter, table, kind, strike, first, **circumstances)
    meanwhile = str(circumstances.get("meanwhile", ""))
    begun = {FIRST, after_foreign(meanwhile, FIRST)}
    final = expected_beside(kind, meanwhile)
    assert table.shown() in {*begun, final}

    ends_once(starter, table, kind, begun, final)


def ends_once(
    starter: ProcessStarter, table: CrashTable, kind: str, begun: set[Rows], final: Rows
) -> None:
    """Restart, look, run once more, look. `begun`: what the table may have shown before."""
    end = starter.run(table.order(kind))
    assert end.signal == 0
    assert end.phase == "Succeeded", end.condition
    assert table.shown() == final
    assert_happened_once(starter, table, kind, begun, end)


def assert_happened_once(
    starter: ProcessStarter, table: CrashTable, kind: str, begun: set[Rows], end: End
) -> None:
    """Look, run once more, which changes nothing."""
    # No version in between was mixed either.
    assert set(table.history()) <= {*begun, table.shown()}
    # Neither complete files that no version names nor parts of them.
    assert table.unreachable() == set()
    assert table.successes() == 1
    table.assert_as_allowed()
    version, files = table.version, table.files()
    again = starter.run(table.order(kind))
    assert again.status["result"] == end.status["result"]
    assert (table.version, table.files()) == (version, files)


ACKNOWLEDGED: Rows = tuple((n, 4, -4) for n in (2, 7, 39, 300))
"""A log writer appends this after a crash: rows of two keys of an upsert, of two keys of a delete,
of a new one."""
LATER: Rows = ((12, 4, -5), (35, 4, -5))
"""It appends this when the operation has ended, whose keys it has, too."""


def append_dies_and_counts_once(
    starter: ProcessStarter,
    table: CrashTable,
    kind: str,
    strike: Strike,
    *,
    first: Strike | None = None,
    **circumstances: Any,
) -> None:
    """Kill an append by key; a log writer appends; restart, which makes one instant of it, before
    what the writer appended if its commit was there, else after it. Then the writer appends again,
    which a further run leaves as it is."""
    kill(starter, table, kind, strike, first, **circumstances)
    begun = after_foreign(str(circumstances.get("meanwhile", "")), FIRST)
    committed = table.appended()
    assert table.shown() == (expected(kind, begun) if committed else begun)
    table.append_to_log("acknowledged", ACKNOWLEDGED)
    if committed:
        final = over(expected(kind, begun), ACKNOWLEDGED)
    else:
        final = expected(kind, over(begun, ACKNOWLEDGED))
    assert table.shown() == (final if committed else over(begun, ACKNOWLEDGED))

    end = starter.run(table.order(kind))
    assert end.signal == 0
    assert end.phase == "Succeeded", end.condition
    assert table.shown() == final
    [instant] = table.appended()
    assert committed in ([], [instant])
    assert end.status["result"]["instants"] == [str(instant)]
    assert table.successes() == 1
    assert table.unreachable() == set()

    table.append_to_log("later", LATER)
    files = table.files()
    again = starter.run(table.order(kind))
    assert again.status["result"] == end.status["result"]
    assert table.shown() == over(final, LATER)
    assert table.files() == files


def append_before_and_after(
    starters: ProcessStarters, tables: Tables, kind: str, point: Point, **more: Any
) -> None:
    """Both sides of a point, in two processes at once."""
    before_and_after(starters, tables, kind, point, die=append_dies_and_counts_once, **more)


def before_and_after(
    starters: ProcessStarters,
    tables: Tables,
    kind: str,
    point: str,
    *,
    nth: int = 1,
    die: Callable[..., None] = die_and_recover,
    **more: Any,
) -> None:
    """Both sides of a point, in two processes at once."""
    with ThreadPoolExecutor(2) as pool:
        futures = [
            pool.submit(die, starter, tables(), kind, Strike(point, after, nth), **more)
            for starter, after in zip(starters, (False, True), strict=True)
        ]
    for future in futures:
        future.result()


def answers_are_lost(starter: ProcessStarter, table: CrashTable, kind: str, point: Point) -> None:
    """The first answer at a point is lost: it is done again, and nothing happens twice; of a
    put it is looked up first what became of it."""
    more = circumstances(point)
    first = more.pop("first", None)
    if first is not None:
        assert starter.run(table.order(kind, strike=first)).killed
    lost = (*more.pop("lost_answers", ()), point)
    end = starter.run(table.order(kind, lost_answers=lost, **more))
    assert end.phase == ("Suspended" if point in SUSPENDED else "Succeeded"), end.condition
    if point is Point.PUT_COMMIT:
        assert (end.points.count(point), Point.LOOK_UP_COMMIT in end.points) == (1, True)
    else:
        assert end.points.count(point) > 1
    if point in SUSPENDED:
        assert table.shown() == FIRST
        end = starter.run(table.order(kind))
        assert end.phase == "Succeeded", end.condition
    meanwhile = str(more.get("meanwhile", ""))
    assert table.shown() == expected_beside(kind, meanwhile)
    begun = {FIRST, after_foreign(meanwhile, FIRST)}
    assert_happened_once(starter, table, kind, begun, end)


def recover(starter: ProcessStarter, table: CrashTable, kind: str, meanwhile: str = "") -> None:
    """Look, restart, look, run once more, look. `meanwhile`: what another writer did, unless the
    process died before."""
    begun = after_foreign(meanwhile if table.version > table.begins else "", FIRST)
    final = expected(kind, begun)
    assert table.shown() in (begun, final)
    ends_once(starter, table, kind, {FIRST, begun}, final)


def strikes_in_turn(
    starter: ProcessStarter,
    tables: Tables,
    kind: str,
    numbers: range,
    at: str,
    **more: Any,
) -> int:
    """Kill at the n-th passage for each number until there is none; how many there were."""
    for struck, number in enumerate(numbers):
        table = tables()
        strike = Strike(at, nth=number)
        end = starter.run(table.order(kind, strike=strike, **more))
        if not end.killed:
            assert end.phase == "Succeeded", end
            return struck
        recover(starter, table, kind, more.get("meanwhile", ""))
    raise AssertionError(f"more than {MOST} changes: raise MOST")


def at_every_change(
    starters: ProcessStarters, tables: Tables, kind: str, at: str = "disk", **more: Any
) -> int:
    """Kill at every change of the file system, or passage of another place; how many there are."""
    with ThreadPoolExecutor(2) as pool:
        odd, even = (
            pool.submit(strikes_in_turn, starter, tables, kind, range(first, MOST, 2), at, **more)
            for first, starter in zip((1, 2), starters, strict=True)
        )
    return odd.result() + even.result()


def cleaning(table: CrashTable, strike: Strike | None = None) -> Order:
    """A cleaning for which everything is old."""
    answer = str(table.folder / "answer-cleaning.json")
    return Order(table.path.as_uri(), {"kind": CLEANING}, answer, strike)


def die_while_clearing(starter: ProcessStarter, tables: Tables, kind: str) -> None:
    """The restart itself dies while it clears away what the first process left."""
    for number in range(1, 6):
        table = tables()
        assert starter.run(table.order(kind, strike=Strike("job:written"))).killed
        end = starter.run(table.order(kind, strike=Strike("disk", nth=number)))
        assert end.killed
        recover(starter, table, kind)
        # The log is other people's ground: a name that they might take for a commit never stays.
        log = [p for p in table.files() if p.startswith("_delta_log/") and STAGED not in p]
        assert all(p.endswith((".json", ".parquet", ".crc")) or "_last" in p for p in log)
