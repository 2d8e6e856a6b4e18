"""Operations on a table that a catalog manages: struck between any two steps of a commit, in random
histories, and by requests that arrive when their senders have been given up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import pytest

from simulator.catalog import LIMIT, Struck
from simulator.crashing import happened_once, nothing_is_left
from simulator.history import History
from simulator.single import Single
from simulator.zombies import LATER_MS, RULES, clean_as_if_dead
from support.cases import JOBLESS, PLAIN
from support.lake.faults import Call, ProcessDied
from support.lake.memory_catalog import CatalogCall
from support.present import present
from support.some import in_turn
from tandem.errors import CatalogForbids, Reason
from tandem.operations.clean import CleaningOptions, clean
from tandem.operations.clean_facts import CleaningDependencies
from tandem.operations.machine.events import Effect, Event, Point
from tandem.spec.status import Phase

HISTORIES = 15
"""Seeds from 0."""
KINDS = (*PLAIN, *JOBLESS)


def test_histories_through_a_catalog_leave_the_rows_of_a_serial_order() -> None:
    struck = late = 0
    for seed in range(HISTORIES):
        history = History(seed, faults=0.1, managed=True)
        history.run()
        struck += sum("add_commit" in line for line in history.world.trace)
        late += sum("late request" in line for line in history.world.trace)
    assert struck > late > 0, "nothing went wrong"


@dataclass
class InCommit:
    """Shows the calls of the catalog in the first commit to `strike`, with their numbers."""

    single: Single
    strike: Callable[[CatalogCall, int], None] = lambda _call, _number: None
    calls: list[CatalogCall] = field(default_factory=list)
    commits: int = 0

    def __call__(self, effect: Effect, call: Call) -> Event:
        if effect.point is not Point.PUT_COMMIT:
            return call()
        self.commits += 1
        if self.commits > 1:
            return call()
        return present(self.single.world.catalog).perform(self._seen, call)

    def _seen(self, call: CatalogCall) -> None:
        self.calls.append(call)
        self.strike(call, len(self.calls) - 1)


@cache
def calls_of_a_commit() -> int:
    """How often the catalog is called, before and after counted apart. A backlog of others is full:
    it refuses, is read, gets a report, and is read, before the calls that every commit takes."""
    single = Single("compaction", managed=True)
    commit = InCommit(single)
    single.end(commit)
    return len(commit.calls)


def _struck(single: Single, number: int, struck: Struck) -> InCommit:
    done = [False]

    def strike(call: CatalogCall, at: int) -> None:
        if at >= number and not done[0]:
            done[0] = True
            if not present(single.world.catalog).strike(struck, call):
                done[0] = False

    return InCommit(single, strike)


CASES = [
    (number, struck, kind)
    for number in range(13)
    for struck in Struck
    for kind in in_turn(KINDS, number + list(Struck).index(struck), every=5)
]


def test_a_commit_calls_its_catalog_as_often_as_the_cases_say() -> None:
    assert calls_of_a_commit() == 13


@pytest.mark.parametrize(("number", "struck", "kind"), CASES)
def test_F27_F28_an_operation_that_is_struck_at_a_call_happens_once(
    number: int, struck: Struck, kind: str
) -> None:
    """Before and after each call of the commit: so between any two of its steps."""
    single = Single(kind, managed=True)
    commit = _struck(single, number, struck)
    ending = single.run(commit) or single.end()
    single.checker.catch_up()
    happened_once(single, ending)
    _no_more(single)


def _no_more(single: Single) -> None:
    """Late requests are refused, and what is not published can be."""
    catalog = present(single.world.catalog)
    version = catalog.table.latest
    while catalog.late:
        catalog.arrive()
    assert catalog.table.latest == version
    single.foreign("append")
    single.world.log.commit_log.publish(version + 1)
    assert catalog.table.published == version + 1
    single.checker.catch_up()


@pytest.mark.parametrize("arrives", ["before", "after"])
@pytest.mark.parametrize("kind", KINDS)
def test_F29_a_request_that_arrives_beside_an_abandonment(kind: str, arrives: str) -> None:
    """Its process died. Before it is declared dead, the request still makes the commit; after that
    it cannot, and another attempt does the work."""
    single = Single(kind, managed=True)
    catalog = present(single.world.catalog)

    def strike(call: CatalogCall, _number: int) -> None:
        if call.name == "add_commit":
            catalog.late.append(call.send)
            raise ProcessDied("before its request arrives")

    single.world.log.commit_log.publish(catalog.table.latest)
    single.die(InCommit(single, strike))
    if arrives == "before":
        catalog.arrive()
        single.checker.catch_up()
        assert single.commits == 1
        assert not clean_as_if_dead(single)
    else:
        assert clean_as_if_dead(single)
        version = catalog.table.latest
        catalog.arrive()
        assert catalog.table.latest == version
        assert single.commits == 0
    happened_once(single, single.end())
    _no_more(single)


@pytest.mark.parametrize("published", [0, 1])
@pytest.mark.parametrize("order", [("request", "rival"), ("rival", "request")])
@pytest.mark.parametrize("kind", KINDS)
def test_F32_a_request_and_a_rival_in_either_order(
    kind: str, order: tuple[str, str], published: int
) -> None:
    """The answer to the first request does not come; it and another writer's commit arrive before
    the session looks, and the rival publishes or not."""
    single = Single(kind, managed=True)
    catalog = present(single.world.catalog)
    single.world.log.commit_log.publish(catalog.table.latest)
    catalog.publish = published

    def strike(call: CatalogCall, _number: int) -> None:
        if call.name == "add_commit" and call.when == "before" and not catalog.late:
            catalog.late.append(call.send)
            catalog.table.fault = None
            for each in order:
                if each == "rival":
                    single.beside("append")
                else:
                    catalog.arrive()
            catalog.strike(Struck.LOSE_REQUEST, call)

    happened_once(single, single.end(InCommit(single, strike)))
    _no_more(single)


@pytest.mark.parametrize("kind", KINDS)
def test_F30_a_dead_writers_backlog_stops_no_operation(kind: str) -> None:
    single = Single(kind, managed=True)
    catalog = present(single.world.catalog)
    catalog.table.limit = catalog.table.latest - catalog.table.published + 1
    for _ in range(LIMIT):
        single.foreign("append")
    happened_once(single, single.end())
    _no_more(single)


@pytest.mark.parametrize("kind", ["compaction", "update"])
def test_F31_what_is_published_and_unreported_or_beyond_the_latest_version(kind: str) -> None:
    """A process died after it had published, and another one is about to be ratified: its file is
    in the folder, and not a version."""
    single = Single(kind, managed=True)
    catalog = present(single.world.catalog)
    single.world.log.commit_log.publish(catalog.table.latest)
    catalog.table.published -= 2
    beyond = f"_delta_log/{catalog.table.latest + 1:020d}.json"
    session = single.at(Point.PUT_COMMIT)
    content = present(catalog.content(catalog.table.latest))
    single.world.store.put(beyond, content)
    assert single.world.log.latest_version() == catalog.table.latest
    single.world.store.delete([beyond])
    happened_once(single, single.succeed(session))
    _no_more(single)


@pytest.mark.parametrize("revoked", [Point.PLAN, Point.PUT_COMMIT])
@pytest.mark.parametrize("permissions", [None, frozenset[str](), frozenset({"DATA_CLEANUP"})])
def test_F33_without_permission_nothing_is_committed(
    permissions: frozenset[str] | None, revoked: Point
) -> None:
    """Never granted, or revoked while the job ran: then a later run, with permission, goes on."""
    single = Single("compaction", managed=True)
    catalog = present(single.world.catalog)
    granted, version = catalog.table.permissions, catalog.table.latest
    session = single.at(revoked)
    catalog.table.permissions = permissions
    before = set(single.world.store.paths())
    ending = single.drive(session)
    assert (ending.phase, ending.reason) == (Phase.FAILED, Reason.CATALOG_FORBIDS), ending
    assert "DATA_REORGANIZATION" in ending.message
    if revoked is Point.PLAN:
        assert set(single.world.store.paths()) == before
    assert single.commits == 0
    for each in range(version + 1, catalog.table.latest + 1):
        content = present(catalog.content(each))  # that the attempt is dead, and no more
        assert b'"add"' not in content
        assert b'"remove"' not in content
    catalog.table.permissions = granted
    happened_once(single, single.end())
    nothing_is_left(single)


@pytest.mark.parametrize("kind", ["update", "delete", "ingest"])
def test_F33_changes_of_rows_need_no_permission(kind: str) -> None:
    single = Single(kind, managed=True)
    present(single.world.catalog).table.permissions = None
    happened_once(single, single.end())


@pytest.mark.parametrize("begun", [False, True])
def test_F33_nothing_is_cleaned_without_permission(*, begun: bool) -> None:
    """Nor in a round that began with it."""
    single = Single("compaction", managed=True)
    catalog = present(single.world.catalog)
    granted = catalog.table.permissions
    happened_once(single, single.end())
    single.world.clock.now += LATER_MS
    files = set(single.world.store.paths())
    ports = single.world.ports()
    means = CleaningDependencies(ports.clock, ports.processes, ports.nonces)

    def revoked() -> bool:
        catalog.table.permissions = frozenset({"DATA_REORGANIZATION"})
        return True

    if not begun:
        revoked()
    with pytest.raises(CatalogForbids, match="no DATA_CLEANUP"):
        clean(single.base, RULES, means, CleaningOptions(may_continue=revoked))
    assert files - set(single.world.store.paths()) == set()
    catalog.table.permissions = granted
    assert clean(single.base, RULES, means).garbage
