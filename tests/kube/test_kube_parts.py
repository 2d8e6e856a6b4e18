"""The small parts of the operator, by themselves: slots, cache, what there is to do."""

from __future__ import annotations

import asyncio
from typing import Any

from tandem.errors import Reason
from tandem.intervals import ALWAYS, IntervalSet, TimeInterval
from tandem.kube.client.resources import ResourceCache, is_active, retry_requested, summarize
from tandem.kube.runtime.slots import JobLimits, JobSlots, Lane
from tandem.kube.tables.status import compose, held_lock, not_ready, ready
from tandem.locks.rules import (
    WHOLE_TABLE,
    EntryState,
    LockEntry,
    LockRequest,
    LockResources,
    Mode,
    named,
    segment,
    within,
)
from tandem.spec.common import PLAN_LABEL
from tandem.spec.status import Phase

Json = dict[str, Any]


def body(name: str = "m", uid: str = "u1", kind: str = "TableCompaction", **more: Any) -> Json:
    metadata = {"name": name, "namespace": "n", "uid": uid, "resourceVersion": "1", "generation": 2}
    return {
        "kind": kind,
        "metadata": {**metadata, **more.get("metadata", {})},
        "spec": {"tableRef": {"name": "t"}, **more.get("spec", {})},
        "status": more.get("status", {}),
    }


def test_the_later_of_two_resources_of_one_name_counts() -> None:
    """A deletion may never be seen, and an earlier state may arrive late."""
    cache, woken = ResourceCache(), list[str]()
    cache.watch(("LakeTable", "n", "t"), lambda: woken.append(""))
    old = body("t", "u1", "LakeTable", metadata={"resourceVersion": "9"})
    new = body("t", "u2", "LakeTable", metadata={"resourceVersion": "10"})
    cache.update(old)
    cache.update(new)
    assert (cache.by_uid("u1"), cache.body("u1")) == (None, None)
    assert len(woken) == 3  # of its coming, its going, and who is there now
    cache.update(old)
    cache.remove("u1")
    found = cache.get(("LakeTable", "n", "t"))
    assert found is not None
    assert found.uid == "u2"
    assert len(cache) == 1
    assert len(woken) == 3


LANE = Lane("team", "lake")


def test_slots_are_given_in_order() -> None:
    async def test() -> list[int]:
        slots, order = JobSlots(JobLimits(2)), list[int]()

        async def work(number: int) -> None:
            await slots.take(LANE)
            order.append(number)
            await asyncio.sleep(0)
            slots.give_back(LANE)

        await asyncio.gather(*(work(number) for number in range(10)))
        assert slots.taken == 0
        return order

    assert asyncio.run(test()) == list(range(10))


def test_the_slot_of_a_cancelled_waiter_is_not_lost() -> None:
    async def test() -> None:
        slots = JobSlots(JobLimits(1))
        await slots.take(LANE)
        waiting = asyncio.create_task(slots.take(LANE))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        slots.give_back(LANE)
        assert slots.try_take(LANE)
        late = asyncio.create_task(slots.take(LANE))
        await asyncio.sleep(0)
        slots.give_back(LANE)  # given to the one that is cancelled in the same moment
        late.cancel()
        await asyncio.gather(late, return_exceptions=True)
        assert slots.taken == 0
        slots.force(LANE)
        slots.force(LANE)
        assert slots.taken == 2
        assert not slots.try_take(LANE)

    asyncio.run(test())


def test_a_waiter_that_was_passed_over_because_it_was_cancelled_ends_so() -> None:
    async def test() -> None:
        slots = JobSlots(JobLimits(1))
        await slots.take(LANE)
        waiting = asyncio.create_task(slots.take(LANE))
        await asyncio.sleep(0)
        waiting.cancel()
        slots.give_back(LANE)  # before the waiter has learned of it
        await asyncio.wait({waiting})
        assert waiting.cancelled()
        assert slots.taken == 0

    asyncio.run(test())


def test_namespaces_and_tables_have_shares_of_the_slots() -> None:
    slots = JobSlots(JobLimits(total=3, per_namespace=2, per_table=1))
    taken = [Lane("a", "1"), Lane("a", "2"), Lane("b", "1")]
    assert slots.try_take(taken[0])
    assert not slots.try_take(taken[0])
    assert slots.what_is_full(taken[0]) == "1 jobs of the table run"
    assert slots.try_take(taken[1])
    assert not slots.try_take(Lane("a", "3"))
    assert slots.what_is_full(Lane("a", "3")) == "2 jobs of the namespace run"
    assert slots.try_take(taken[2])
    assert not slots.try_take(Lane("c", "1"))
    assert slots.what_is_full(Lane("c", "1")) == "3 jobs run"
    slots.give_back(taken[0])
    assert slots.try_take(Lane("a", "3"))


def test_namespaces_take_turns_and_one_that_waits_for_its_share_is_passed() -> None:
    async def test() -> list[str]:
        slots = JobSlots(JobLimits(total=2, per_namespace=1))
        waits, has = asyncio.Queue[str](), asyncio.Queue[str]()

        async def work(namespace: str) -> None:
            waits.put_nowait(namespace)
            await slots.take(Lane(namespace, "t"))
            has.put_nowait(namespace)

        assert slots.try_take(Lane("a", "t"))
        assert slots.try_take(Lane("b", "t"))
        works = [asyncio.create_task(work(namespace)) for namespace in "aaacb"]
        for _ in works:
            await waits.get()
        order = []
        for back in "bcaaa":
            slots.give_back(Lane(back, "t"))
            order.append(await has.get())
        await asyncio.gather(*works)
        return order

    # The slots of b and c do not go to a, which has its share.
    assert asyncio.run(test()) == ["c", "b", "a", "a", "a"]


def test_without_a_limit_every_slot_is_granted() -> None:
    slots = JobSlots(JobLimits(0))
    assert all(slots.try_take(LANE) for _ in range(1000))


def test_operations_that_are_active() -> None:
    assert is_active(body())
    assert is_active(body(status={"phase": "Suspended"}))
    assert not is_active(body(status={"phase": "Succeeded"}))
    assert not is_active(body(status={"phase": "Failed"}))
    asked = {"annotations": {"tandem.dev/retry": "7"}}
    assert is_active(body(status={"phase": "Failed"}, metadata=asked))
    answered = body(status={"phase": "Failed", "observedRetry": "7"}, metadata=asked)
    assert not is_active(answered)
    assert retry_requested(answered) == ""
    assert not is_active(body(status={"phase": "Succeeded"}, metadata=asked))


def test_every_object_has_a_summary() -> None:
    metadata = {"name": "x", "uid": "u", "resourceVersion": "1"}
    odd = {"kind": "TableUpdate", "metadata": metadata}
    assert summarize({**odd, "spec": None, "status": None}).table == ""
    assert summarize({**odd, "spec": [], "status": "no"}).phase == ""
    # A dry run is left out of the table's status; the label alone leaves none out.
    labelled = {**odd, "metadata": {**metadata, "labels": {PLAN_LABEL: "true"}}}
    assert summarize({**labelled, "spec": {"dryRun": True}}).labels == ((PLAN_LABEL, "true"),)
    assert summarize({**labelled, "spec": {}}).labels == ()


def test_the_cache_knows_the_latest_of_a_name() -> None:
    cache = ResourceCache()
    cache.update(body(uid="old"))
    cache.update(body(uid="new", status={"phase": "Succeeded"}))
    cache.remove("old")
    found = cache.get(("TableCompaction", "n", "m"))
    assert found is not None
    assert found.uid == "new"
    assert [s.uid for s in cache.of_table("n", "t")] == ["new"]
    # Of what has ended only a summary is kept.
    assert cache.body("new") is None
    cache.remove("new")
    assert len(cache) == 0
    assert list(cache.of_table("n", "t")) == []


def test_the_cache_wakes_watchers_of_a_resource_and_of_its_table() -> None:
    cache, woken = ResourceCache(), list[str]()
    end = cache.watch(("TableCompaction", "n", "m"), lambda: woken.append("operation"))
    cache.watch(("LakeTable", "n", "t"), lambda: woken.append("table"))
    cache.update(body())
    assert woken == ["operation", "table"]
    end()
    cache.update(body("other", "u2"))
    cache.remove("u1")
    assert woken == ["operation", "table", "table", "table"]


def test_the_status_of_a_table_shows_its_locks() -> None:
    def entry(resources: LockResources, state: EntryState = EntryState.HELD) -> LockEntry:
        request = LockRequest("s3://t", "id", Mode.REWRITE, resources, display="TableCompaction/m")
        return LockEntry(request, state, 1)

    assert held_lock(entry(named(["0.1", "5"]))) == "TableCompaction/m: 0.1, 5 (Rewrite)"
    assert held_lock(entry(WHOLE_TABLE)) == "TableCompaction/m: the whole table (Rewrite)"
    some = within(IntervalSet([TimeInterval(1362182400000, ALWAYS.end_ms), TimeInterval(0, 1)]))
    assert held_lock(entry(some)) == (
        "TableCompaction/m: 1970-01-01T00:00:00Z/1970-01-01T00:00:00.001Z, "
        "2013-03-02T00:00:00Z/… (Rewrite)"
    )
    many = entry(named(str(number) for number in range(10)))
    assert held_lock(many).endswith("6, 7 and 2 more (Rewrite)")
    waits = entry(segment("1"), EntryState.WAITING)
    log = [entry(segment("3")), entry(WHOLE_TABLE)]
    status = compose(None, ready(Reason.ADOPTED, "", 1, 0), 1, [], [], log_locks=log)
    assert [lock.segments for lock in status.locks or ()] == [("instant 3",), ("the whole log",)]
    assert status.held_locks[0] == "TableCompaction/m: instant 3 (Rewrite)"
    status = compose(None, ready(Reason.ADOPTED, "", 1, 0), 1, [], [waits])
    assert status.held_locks == ()


def test_a_table_is_stalled_by_what_lasts_and_reconciling_by_what_passes() -> None:
    lasting = compose(None, not_ready(Reason.TABLE_NOT_FOUND, "no", 3, 0), 3, [], [])
    passing = compose(None, not_ready(Reason.STORAGE_ERROR, "away", 3, 0), 3, [], [])
    assert (lasting.phase, passing.phase) == (Phase.FAILED, Phase.PENDING)
    truths = [[str(c.status) for c in s.conditions] for s in (lasting, passing)]
    # Ready, Reconciling, Stalled
    assert truths == [["False", "False", "True"], ["False", "True", "False"]]
    assert {c.observed_generation for c in lasting.conditions} == {3}
    assert [c.message for c in lasting.conditions] == ["no", "", ""]
