"""What the operator does of what a child asks for: nothing harms another tenant, or takes a slot
for ever."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kube.applications import ScriptedJobs
from kube.child_links import Stub, child_of, turns, with_child
from support.lock_requests import TABLE, request
from support.waiting import until
from tandem.errors import ClusterUnavailable, LocationNotAllowed, TandemError
from tandem.kube.children.link import Link
from tandem.kube.children.ports import (
    LinkedAutomaticSlots,
    LinkedMetrics,
    LinkedRunner,
    LinkedSlots,
    lock_request,
    lock_resources,
)
from tandem.kube.children.services import ChildServices, may_request
from tandem.kube.client import events
from tandem.kube.client.api import Forbidden, Unavailable
from tandem.kube.client.resources import Body
from tandem.kube.metrics import families
from tandem.kube.runtime.leader import MEMBERS, LockMembers
from tandem.kube.runtime.slots import Lane
from tandem.kube.runtime.tenants import Tenant
from tandem.kube.tables.status import TableFigures
from tandem.locks.rules import WHOLE_TABLE, Mode
from tandem.storage.paths import LOG_FOLDER
from tandem.storage.renewable import Vended

# What a child may ask for

OURS = "/apis/tandem.dev/v1alpha1/namespaces/a"


@pytest.mark.parametrize(
    ("method", "url", "allowed"),
    [
        ("GET", f"{OURS}/laketables/t", True),
        ("GET", f"{OURS}/tablecompactions", True),
        ("GET", f"{OURS}/tablecompactions/c", True),
        ("POST", f"{OURS}/tablecompactions", True),
        ("DELETE", f"{OURS}/tablecompactions/c", True),
        ("PATCH", f"{OURS}/tablecompactions/c/status", True),
        ("PATCH", f"{OURS}/laketables/t/status", True),
        ("GET", "/api/v1/namespaces/a/secrets/keys", True),
        # Of other namespaces, or of all
        ("GET", "/apis/tandem.dev/v1alpha1/namespaces/b/laketables/t", False),
        ("GET", "/apis/tandem.dev/v1alpha1/laketables", False),
        ("PATCH", "/apis/tandem.dev/v1alpha1/namespaces/b/laketables/t/status", False),
        ("GET", "/apis/tandem.dev/v1alpha1/namespaces/a/../b/laketables", False),
        ("GET", f"{OURS}/laketables/..", False),
        ("GET", f"{OURS}/laketables/%2e%2e", False),
        ("GET", f"{OURS}/laketables/..%2f..%2fb", False),
        ("GET", "//apis/tandem.dev/v1alpha1/namespaces/a/laketables", False),
        ("GET", f"https://elsewhere{OURS}/laketables", False),
        # Secrets of others
        ("GET", "/api/v1/namespaces/a/secrets/others", False),
        ("GET", "/api/v1/namespaces/b/secrets/keys", False),
        ("GET", "/api/v1/namespaces/a/secrets", False),
        ("GET", "/api/v1/namespaces/a/secrets/", False),
        ("GET", "/api/v1/namespaces/a/pods/p", False),
        ("PATCH", "/api/v1/namespaces/a/secrets/keys", False),
        ("DELETE", "/api/v1/namespaces/a/secrets/keys", False),
        # Specs
        ("PATCH", f"{OURS}/laketables/t", False),
        ("PATCH", f"{OURS}/tablecompactions/c", False),
        ("PUT", f"{OURS}/laketables/t/status", False),
        ("PATCH", f"{OURS}/laketables/t?x=/status", False),
        ("PATCH", f"{OURS}/laketables/t#/status", False),
        ("POST", f"{OURS}/laketables", False),
        ("DELETE", f"{OURS}/laketables/t", False),
        # Many at once, and other parts
        ("DELETE", f"{OURS}/tablecompactions", False),
        ("DELETE", f"{OURS}/tablecompactions/", False),
        ("DELETE", f"{OURS}/tablecompactions/?x", False),
        ("POST", f"{OURS}/tablecompactions/c", False),
        ("GET", f"{OURS}/tablecompactions/c/scale", False),
        ("PATCH", f"{OURS}/tablecompactions/c/finalizers", False),
        ("GET", f"{OURS}/indexservers/i", False),
        ("GET", OURS, False),
        ("GET", "/", False),
        ("get", f"{OURS}/laketables/t", False),
    ],
)
def test_what_a_child_may_request(method: str, url: str, allowed: bool) -> None:
    assert may_request(Tenant("a"), ("keys",), method, url) is allowed


def test_without_a_secret_there_is_none_to_read() -> None:
    assert not may_request(Tenant("a"), (), "GET", "/api/v1/namespaces/a/secrets/")


def test_requests_are_checked() -> None:
    url = f"{OURS}/laketables/t"

    async def test(stub: Stub, child: Link, _: ChildServices) -> None:
        more: Any = (None, {}, "application/json")
        assert await child.call("api", "GET", url, *more) == {"found": url}
        with pytest.raises(Forbidden):
            await child.call("api", "PATCH", url, *more)
        stub.leads = False
        with pytest.raises(Unavailable):
            await child.call("api", "PATCH", f"{url}/status", *more)
        await child.call("api", "GET", url, *more)

    assert with_child(test).requests == [f"GET {url}"] * 2


def test_locks_are_those_of_the_tenants_tables() -> None:
    async def test(stub: Stub, child: Link, _: ChildServices) -> None:
        wanted, owner = request("a", Mode.UPDATE, "1"), "process of a"
        assert await child.call("locks.acquire", lock_request(wanted)) == {"token": 1}
        log = request("b", Mode.UPDATE, table=f"{TABLE}/{LOG_FOLDER}")
        assert "token" in await child.call("locks.acquire", lock_request(log))
        for other in (f"{TABLE}2", "file:///", "file:///other", MEMBERS, "tandem:leader:tandem"):
            theirs = request("a", Mode.UPDATE, "1", table=other)
            stub.locks.acquire(theirs)
            asks: list[tuple[Any, ...]] = [
                ("acquire", lock_request(theirs)),
                ("extend", other, "a", owner, lock_resources(WHOLE_TABLE)),
                ("watch", 1, other, "a"),
                ("enter_commit", other, "a", owner),
                ("leave_commit", other, "a", owner),
                ("release", other, "a", owner),
                *([] if other == MEMBERS else [("entries", other)]),
            ]
            for name, *arguments in asks:
                with pytest.raises(LocationNotAllowed):
                    await child.call(f"locks.{name}", *arguments)
            assert len(stub.locks.entries(other)) == 1
        LockMembers(stub.locks, "other", "nonce").join()
        assert len(await child.call("locks.entries", MEMBERS)) == 2

    with_child(test)


def test_a_child_renews_the_credentials_of_its_tenants_jobs() -> None:
    vended, renewed = Vended({"AWS_SESSION_TOKEN": "hush"}, 7), list[tuple[str, Vended]]()

    class Jobs(ScriptedJobs):
        def renew(self, name: str, vended: Vended) -> None:
            renewed.append((name, vended))

    async def test(stub: Stub, child: Link, _: ChildServices) -> None:
        vars(stub)["runner_factory"] = lambda *_: Jobs()
        for namespace, uid in (("a", "1"), ("b", "2")):
            made = lake_table("c", uid, {"tableRef": {"name": "t"}, "type": "Major"})
            metadata = {**made["metadata"], "namespace": namespace}
            stub.resource_cache.update({**made, "kind": "TableCompaction", "metadata": metadata})
        loop = asyncio.get_running_loop()
        for uid in ("1", "2", "3"):
            runner = LinkedRunner(child, loop, uid, lambda: None)
            if uid == "1":
                await asyncio.to_thread(runner.renew, "job", vended)
                continue
            with pytest.raises(ClusterUnavailable, match="does not know the operation"):
                await asyncio.to_thread(runner.renew, "job", vended)

    with_child(test)
    assert renewed == [("job", vended)]


def lake_table(name: str, uid: str, spec: dict[str, Any]) -> Body:
    metadata = {"name": name, "namespace": "a", "uid": uid, "resourceVersion": "1"}
    kind = {"apiVersion": "tandem.dev/v1alpha1", "kind": "LakeTable"}
    return {**kind, "metadata": metadata, "spec": spec}


def test_a_table_that_a_catalog_names_lies_where_its_child_says_within_bounds() -> None:
    """`a` may have tables below file:///a."""
    catalog = {"hive": {"uri": "thrift://metastore", "name": "db.t"}}

    async def test(stub: Stub, child: Link, _: ChildServices) -> None:
        stub.resource_cache.update(lake_table("named", "1", {"catalog": catalog}))
        stub.resource_cache.update(lake_table("typed", "2", {"location": "file:///a/typed"}))
        for name, uid, place in (("named", "1", "file:///a/named"), ("typed", "2", "file:///a/x")):
            figures = TableFigures(uid, ready=True, reason="Adopted", location=place)
            child.notify("figures", ("a", name), figures.as_json())
        wanted = request("a", Mode.UPDATE, "1", table="file:///a/named")
        assert await child.call("locks.acquire", lock_request(wanted)) == {"token": 1}
        other = request("a", Mode.UPDATE, "1", table="file:///a/x")
        with pytest.raises(LocationNotAllowed):
            await child.call("locks.acquire", lock_request(other))

    with_child(test)


@pytest.mark.parametrize(
    "places", [["file:///b/t"], ["no place"], [f"file:///a/{number}" for number in range(101)]]
)
def test_a_child_that_places_a_table_outside_of_its_bounds_is_taken_over(places: list[str]) -> None:
    """Or at places without end, which the operator would keep."""
    catalog = {"hive": {"uri": "thrift://metastore", "name": "db.t"}}

    async def run() -> set[str]:
        stub, child = Stub(), Link({})
        async with child_of(stub, child) as services:
            stub.resource_cache.update(lake_table("named", "1", {"catalog": catalog}))
            for place in places:
                figures = TableFigures("1", ready=True, reason="Adopted", location=place)
                child.notify("figures", ("a", "named"), figures.as_json())
            await until(lambda: services.link.ended)
            found: set[str] = vars(services)["_locations"]
            return found

    assert asyncio.run(run()) == {TABLE, *places[:-1]}


def test_what_a_child_says_is_about_its_namespace() -> None:
    posted: list[str] = []

    def uid(namespace: str, name: str) -> str:
        return f"uid of {namespace}/{name}"

    async def test(stub: Stub, child: Link, services: ChildServices) -> None:
        for namespace in ("a", "b"):
            metadata = {"namespace": namespace, "name": "t", "resourceVersion": "1"}
            stub.resource_cache.update(
                {
                    "apiVersion": "tandem.dev/v1alpha1",
                    "kind": "LakeTable",
                    "metadata": {**metadata, "uid": uid(namespace, "t")},
                    "spec": {"location": TABLE},
                }
            )
            child.notify("gone", uid(namespace, "t"))
            reference = {"metadata": {**metadata, "uid": "controlled"}}
            child.notify("event", reference, "Reason", namespace, False)
            child.notify("event", {"metadata": {**metadata, "uid": "x"}}, "Reason", "not", False)
        with pytest.raises(TandemError, match="a bug"):
            await child.call("slots.take", 1, "b", "t")
        child.notify("small_job", "one", True)
        child.notify("small_job", "two", True)
        child.notify("small_job", "two", None)
        child.notify("small_job", "three", True)
        child.notify("small_job", "three", False)
        await child.call("automatic.wake_first")  # all of it has been heard
        assert (services.at_work, services.unsuited) == ({"one"}, {"three"})

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(events, "post", lambda _b, _r, message, **_: posted.append(message))
        stub = with_child(test)
    assert posted == ["a"]
    assert [each.namespace for each in stub.resource_cache.all()] == ["b"]


def test_metrics_are_recorded_with_bounded_labels() -> None:
    async def test(stub: Stub, child: Link, _: ChildServices) -> None:
        metrics = LinkedMetrics()
        metrics.count(families.INTERNAL_ERRORS, "table")
        metrics.count(families.INTERNAL_ERRORS, "table")
        for number in range(20):
            metrics.count(families.INTERNAL_ERRORS, f"anything {number}")
        metrics.flush(child)
        metrics.flush(child)  # nothing is said twice
        await child.call("automatic.wake_first")
        text = (await stub.metrics.exposition()).decode()
        counts = [line for line in text.splitlines() if "tandem_internal_errors_total{" in line]
        assert 'tandem_internal_errors_total{where="table"} 2.0' in counts
        assert sum(float(line.split()[-1]) for line in counts) == 22
        assert not any("anything" in line for line in counts)

    with_child(test)


@pytest.mark.parametrize(
    "record",
    [
        ["unheard of", "add", 1, []],
        ["tandem_internal_errors_total", "add", -1, ["table"]],
        ["tandem_internal_errors_total", "clear", 1, ["table"]],
        ["tandem_internal_errors_total", "add", "much", ["table"]],
        ["tandem_internal_errors_total", "add", 1, []],
    ],
)
def test_a_record_of_a_metric_that_is_none_ends_the_link(record: list[Any]) -> None:
    async def test(_: Stub, child: Link, services: ChildServices) -> None:
        child.notify("metrics", [record])
        await until(lambda: services.link.ended)

    with_child(test)


# Slots

LANES = (Lane("a", "t"), Lane("a", "u"), Lane("a", "v"))


@dataclass
class Player:
    """A child that takes slots, and its part of the play."""

    slots: LinkedSlots
    link: Link
    services: ChildServices
    takes: list[tuple[Lane, asyncio.Task[None]]] = field(default_factory=list)

    def take(self, number: int) -> None:
        lane = LANES[number % len(LANES)]
        self.takes.append((lane, asyncio.create_task(self.slots.take(lane))))

    def cancel(self, number: int) -> None:
        """Give up waiting, wherever the answer is by now."""
        if self.takes:
            self.takes[number % len(self.takes)][1].cancel()

    def give_back(self, _: int) -> None:
        for lane in self.held()[:1]:
            self.slots.give_back(lane[0])
            self.takes.remove(lane)

    def held(self) -> list[tuple[Lane, asyncio.Task[None]]]:
        return [(lane, task) for lane, task in self.takes if task.done() and not task.cancelled()]

    async def settle(self) -> None:
        """All that was said has been heard, and what follows from it has happened."""
        for _ in range(3):
            await self.link.call("automatic.wake_first")
            await self.services.link.call("ping")
            await turns(5)


async def play(steps: list[tuple[int, str, int]]) -> None:
    stub = Stub()

    @asynccontextmanager
    async def player() -> AsyncIterator[Player]:
        async def pong() -> bool:
            return True

        link = Link({"slots.queued": lambda ticket, why: slots.queued(ticket, why), "ping": pong})
        slots = LinkedSlots(link)
        async with child_of(stub, link) as services:
            yield Player(slots, link, services)

    async with player() as other:
        async with player() as one:
            players = (one, other)
            for who, what, number in steps:
                if what == "turns":
                    await turns(number)
                elif what == "settle":
                    await players[who].settle()
                else:
                    getattr(players[who], what)(number)
                assert stub.slots.taken <= 2
            for each in players:
                await each.settle()
            assert stub.slots.taken == sum(len(each.held()) for each in players)
            for lane in LANES:  # none that could have one is left without
                waits = [
                    each for each in players for la, t in each.takes if la == lane and not t.done()
                ]
                assert not waits or stub.slots.what_is_full(lane)
        await asyncio.gather(*(task for _, task in one.takes), return_exceptions=True)
        await other.settle()
        assert stub.slots.taken == len(other.held())
        for _, task in other.takes:
            task.cancel()
        await other.settle()
        for lane, _ in other.held():
            other.slots.give_back(lane)
        await other.settle()
        assert (stub.slots.taken, stub.slots.waiting) == (0, 0)


STEPS = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.sampled_from(["take", "take", "cancel", "give_back", "turns", "settle"]),
        st.integers(0, 5),
    ),
    max_size=16,
)


@given(STEPS)
@settings(max_examples=150, deadline=None)
def test_slots_are_neither_lost_nor_doubled(steps: list[tuple[int, str, int]]) -> None:
    """Whatever children take, give back and give up, and when they end."""
    asyncio.run(play(steps))


@pytest.mark.parametrize("gives_up", [False, True])
@pytest.mark.parametrize("between", range(12))
def test_a_slot_that_is_granted_too_late_is_given_back(between: int, gives_up: bool) -> None:
    """Its child ends, or gives up waiting, at each step between the grant and its arrival."""

    async def run() -> None:
        stub, link = Stub(), Link({"slots.queued": lambda *_: None})
        stub.slots.force(LANES[0])
        async with child_of(stub, link) as services:
            taking = asyncio.create_task(LinkedSlots(link).take(LANES[0]))
            await until(lambda: stub.slots.waiting == 1)
            stub.slots.give_back(LANES[0])
            await turns(between)
            if gives_up:
                taking.cancel()
                await asyncio.gather(taking, return_exceptions=True)
                if not taking.cancelled():
                    return  # it was granted in time
                await until(lambda: stub.slots.taken == 0)
            else:
                services.link.close()
                await asyncio.gather(taking, return_exceptions=True)
        await until(lambda: stub.slots.taken == 0)

    asyncio.run(run())


def test_a_slot_that_is_given_up_at_once_is_not_taken() -> None:
    """Both messages are one write: the second one is read before the first one is answered."""

    async def test(stub: Stub, child: Link, _: ChildServices) -> None:
        slots = LinkedSlots(child)
        taking = asyncio.create_task(slots.take(LANES[0]))
        await turns(1)  # it has called, and nothing is written yet
        taking.cancel()
        await asyncio.gather(taking, return_exceptions=True)
        await slots.take(LANES[1])
        assert stub.slots.taken == 1

    with_child(test)


def test_a_child_says_why_it_waits_and_may_force() -> None:
    whys: list[str] = []

    async def run() -> None:
        stub = Stub()
        link = Link({"slots.queued": lambda ticket, why: slots.queued(ticket, why)})
        slots = LinkedSlots(link)
        async with child_of(stub, link):
            slots.force(LANES[0])
            slots.force(LANES[0])
            taking = asyncio.create_task(slots.take(LANES[0], whys.append))
            await until(lambda: bool(whys))
            assert stub.slots.taken == 2
            slots.give_back(LANES[0])
            slots.give_back(LANES[0])
            await taking
            assert stub.slots.taken == 1
        assert stub.slots.taken == 0

    asyncio.run(run())
    assert whys == ["2 jobs run"]


def test_automatic_slots_of_children() -> None:
    """The second one waits, is woken, and its place goes with its child."""
    woken: list[str] = []

    async def run() -> None:
        stub = Stub()

        def child() -> tuple[Link, LinkedAutomaticSlots]:
            link = Link({"automatic.wake": lambda number: slots.woken(number)})
            slots = LinkedAutomaticSlots(link, 1)
            return link, slots

        (one, first), (two, second) = child(), child()
        waiters = [object() for _ in range(3)]
        keys = [("TableCompaction", "a", f"c{number}") for number in range(3)]
        async with child_of(stub, one):
            async with child_of(stub, two):
                assert await first.take(waiters[0], keys[0], lambda: woken.append("0")) == 0
                assert await second.take(waiters[1], keys[1], lambda: woken.append("1")) == 1
                assert await first.take(waiters[2], keys[2], lambda: woken.append("2")) == 2
                vars(stub.automatic_slots)["_granted"].clear()  # it has ended
                first.wake_first()
                await until(lambda: woken == ["1"])
            first.wake_first()
            await until(lambda: woken == ["1", "2"])
            first.leave(waiters[2])
            await one.call("automatic.wake_first")
            assert await first.take(waiters[0], keys[0], lambda: None) == 0

    asyncio.run(run())
