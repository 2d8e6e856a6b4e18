"""Many operations applied in one go, on several tables."""

from __future__ import annotations

from pathlib import Path

from kube.kube_scenarios import Json, World
from kube.ledger import Ledger
from support.cases import PLAIN
from support.jobs import quick_lake
from support.waiting import await_that


def many_at_once(world: World, folder: Path, count: int, tables: int = 10) -> None:
    """Apply so many operations in one go; all must end well."""
    ledgers = [Ledger(quick_lake.make(folder / str(n), loads=1)) for n in range(tables)]
    lakes = [world.adopt(ledger.lake, wait=False) for ledger in ledgers]
    applied = []
    for number in range(count):
        ledger, table = ledgers[number % tables], lakes[number % tables]
        kind = PLAIN[number // tables % len(PLAIN)]
        # An update whose rounds are the job's loses many to deletes, whose are the engine's.
        rounds = {"conflict": {"maxAttempts": 50}} if kind in ("update", "delete") else {}
        applied.append(table.apply(ledger.make(kind, backoffLimit=20, **rounds)))

    def ended() -> list[Json]:
        return [b for b in world.space.operations() if b.get("status", {}).get("completionTime")]

    await_that(lambda: len(ended()) == count, lambda: f"{len(ended())} of {count}", 30 + count, 0.5)
    for each in applied:
        each.reaches("Succeeded", "Superseded")
    for ledger in ledgers:
        ledger.assert_serial()
    world.assert_nothing_left_behind(*lakes)
