"""SIGKILL at every single change of the file system, not only between effects.

A file appears by a link or a rename and vanishes by an unlink. A process that dies at any one of
them, with its files half in place, is followed by a fresh one that finishes the work.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.crash import End, Nursery, Strike
from support.crash_table import FIRST, KINDS, STAGED, CrashTable, expected

Tables = Callable[[], CrashTable]
Nurseries = tuple[Nursery, Nursery]
MOST = 60
"""No operation on this table changes the file system so often."""


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


@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_every_change_of_the_file_system(
    nurseries: Nurseries, tables: Tables, kind: str
) -> None:
    with ThreadPoolExecutor(2) as pool:
        odd, even = (
            pool.submit(strikes_in_turn, nursery, tables, kind, range(first, MOST, 2))
            for first, nursery in zip((1, 2), nurseries, strict=True)
        )
    # Plan, job, data, answer, commit, and the tidying of staged names: more than a handful.
    assert odd.result() + even.result() > 10


@pytest.mark.parametrize("kind", KINDS)
def test_killed_between_two_changes_of_the_clean_up(
    nurseries: Nurseries, tables: Tables, kind: str
) -> None:
    """The restart itself dies while it clears away what the first process left."""
    nursery = nurseries[0]
    for number in range(1, 6):
        table = tables()
        assert nursery.run(table.order(kind, strike=Strike("job:written"))).killed
        end = nursery.run(table.order(kind, strike=Strike("disk", nth=number)))
        assert end.killed
        recover(nursery, table, kind, end)
        # The log is other people's ground: a name that they might take for a commit never stays.
        log = [p for p in table.files() if p.startswith("_delta_log/") and STAGED not in p]
        assert all(p.endswith((".json", ".parquet", ".crc")) or "_last" in p for p in log)
