"""Slots of automatic jobs: how many there are, who waits, and who goes first."""

from __future__ import annotations

import asyncio
from typing import Any

from tandem.kube.client.resources import ResourceCache
from tandem.kube.runtime import slots
from tandem.kube.runtime.slots import AutomaticSlots

KEY = "TableCompaction", "lake"


def child(name: str, phase: str = "Running", kind: str = "TableCompaction", **more: Any) -> Any:
    labels = {"tandem.dev/automatic": "minor", **more.get("labels", {})}
    return {
        "apiVersion": "tandem.dev/v1alpha1",
        "kind": kind,
        "metadata": {"name": name, "namespace": "lake", "uid": f"u-{name}", "generation": 1,
                     "resourceVersion": "1", "labels": labels,
                     "ownerReferences": [{"uid": more.get("owner", "u-t")}]},
        "spec": {"tableRef": {"name": "t"}},
        "status": {"phase": phase, "observedGeneration": 1, "conditions": [
            {"type": "Succeeded", "status": "Unknown", "reason": more.get("reason", "")}]},
    }  # fmt: skip


class Play:
    """Slots, and tables that ask for them by their names."""

    def __init__(self, limit: int) -> None:
        self.cache = ResourceCache()
        table = {"name": "t", "namespace": "lake", "uid": "u-t", "resourceVersion": "1"}
        self.cache.update({"kind": "LakeTable", "metadata": table})
        self.slots = AutomaticSlots(limit, self.cache)
        self.woken: list[str] = []

    async def take(self, table: str, kind: str = "TableCompaction") -> int:
        key = (kind, "lake", f"of-{table}")
        return await self.slots.take(table, key, lambda: self.woken.append(table))

    def see(self, table: str, phase: str = "Running") -> None:
        self.cache.update(child(f"of-{table}", phase))


def test_who_waited_longest_goes_first() -> None:
    async def play() -> None:
        p = Play(2)
        assert [await p.take(table) for table in "abcd"] == [0, 0, 1, 2]
        for table in "ab":
            p.see(table)
        assert [await p.take("d"), await p.take("c")] == [2, 1]
        p.slots.wake_first()
        assert p.woken == []

        p.see("a", "Succeeded")
        p.slots.wake_first()
        assert p.woken == ["c"]
        assert [await p.take("d"), await p.take("c"), await p.take("d")] == [2, 0, 1]

    asyncio.run(play())


def test_one_that_leaves_or_asks_no_more_holds_up_no_other(monkeypatch: Any) -> None:
    async def play() -> None:
        p = Play(1)
        assert [await p.take(table) for table in "abc"] == [0, 1, 2]
        p.slots.leave("b")
        assert await p.take("c") == 1
        monkeypatch.setattr(slots, "_FORGOTTEN_S", -1.0)
        assert await p.take("d") == 1

    asyncio.run(play())


def test_what_does_not_run_drops_and_those_of_users_take_no_slot() -> None:
    async def play() -> None:
        p = Play(1)
        p.cache.update(child("asleep", "Suspended"))
        p.cache.update(child("drop", kind="TableReplace"))
        by_hand = child("by-hand")
        del by_hand["metadata"]["labels"]["tandem.dev/automatic"]
        p.cache.update(by_hand)
        p.cache.update(child("labelled-by-hand", owner=""))
        p.cache.update(child("of-another-table", owner="u-t2"))
        p.cache.update(child("its-table-is-not-ready", "Pending", reason="WaitingForDependency"))
        assert await p.take("a") == 0
        assert await p.take("b") == 1
        assert await p.take("c", kind="TableReplace") == 0

    asyncio.run(play())


def test_without_a_limit_none_waits() -> None:
    async def play() -> None:
        p = Play(0)
        assert [await p.take(str(n)) for n in range(9)] == [0] * 9

    asyncio.run(play())
