"""An operator looks for garbage less often while it runs, leaves the process as it was, and gives
free memory back."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.waiting import await_that
from tandem.kube.runtime import memory
from tandem.kube.runtime.memory import give_memory_back, seldom_collections


@pytest.fixture
def defaults() -> Iterator[None]:
    """Python's, also where an operator of another test has not ended."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


@pytest.mark.usefixtures("defaults")
def test_collections_are_seldom_in_the_block_alone() -> None:
    before = gc.get_threshold()
    with seldom_collections():
        now = gc.get_threshold()
        assert now[0] > before[0]
        assert now[1] < before[1], "few objects at a time"
        assert now[0] * now[1] * now[2] > before[0] * before[1] * before[2]
        assert gc.get_freeze_count() > 0
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_free_memory_between_what_is_in_use_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_FIRST_TRIM_S", 0.001)
    monkeypatch.setattr(memory, "_TRIM_S", 0.001)
    size, count = 2_000, 60_000
    held = [bytes(size) for _ in range(count)]
    held = held[::20]  # few are left, in all places
    before = resident_bytes()

    async def play() -> None:
        giving = asyncio.create_task(give_memory_back())
        wanted = before - size * count // 4
        await asyncio.to_thread(await_that, lambda: resident_bytes() < wanted, resident_bytes)
        giving.cancel()

    asyncio.run(play())
    assert held
