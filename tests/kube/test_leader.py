"""Who leads, and who must not act as if it did."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

from tandem.kube.runtime.leader import Leadership, LockMembers
from tandem.locks.store import InProcessLocks


class Loop:
    """A loop's clock in a test's hands."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._real = loop.time
        self.slept = 0.0
        loop.time = self.time  # type: ignore[method-assign]

    def time(self) -> float:
        return self._real() + self.slept


async def _candidate(locks: InProcessLocks, name: str, pool: ThreadPoolExecutor) -> Leadership:
    members = LockMembers(locks, name, f"nonce-of-{name}")
    return Leadership(locks, members, "here", pool, grace_s=40)


def test_a_leader_that_stood_still_too_long_leads_no_more() -> None:
    """Not even for the moment until it has looked: its status writes would overwrite those of
    who leads by then."""

    async def scene() -> None:
        clock = Loop(asyncio.get_running_loop())
        with ThreadPoolExecutor(2) as pool:
            leader = await _candidate(InProcessLocks(), "one", pool)
            await leader.win()
            holding = asyncio.create_task(leader.hold())
            await asyncio.sleep(0)
            assert leader.leads
            clock.slept = 41
            assert not leader.leads
            await asyncio.wait_for(holding, 100)
            assert not leader.leads

    asyncio.run(scene())


def test_waiting_for_kinds_to_be_installed_is_not_standing_still() -> None:
    async def scene() -> None:
        clock = Loop(asyncio.get_running_loop())
        with ThreadPoolExecutor(2) as pool:
            leader = await _candidate(InProcessLocks(), "one", pool)
            await leader.win()
            clock.slept = 1000
            assert leader.leads
            holding = asyncio.create_task(leader.hold())
            await asyncio.sleep(0)
            assert leader.leads
            await leader.resign()
            clock.slept = 1002
            await asyncio.wait_for(holding, 100)

    asyncio.run(scene())


def test_the_next_one_leads_when_the_first_resigns() -> None:
    async def scene() -> None:
        locks = InProcessLocks()
        with ThreadPoolExecutor(4) as pool:
            first = await _candidate(locks, "one", pool)
            second = await _candidate(locks, "two", pool)
            await first.win()
            winning = asyncio.create_task(second.win())
            await asyncio.sleep(0)
            assert not second.leads
            await first.resign()
            await asyncio.wait_for(winning, 100)
            assert (first.leads, second.leads) == (False, True)

    asyncio.run(scene())
