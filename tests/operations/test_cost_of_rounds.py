"""Rounds pay for what is new: files that no commit has named since are not looked up again."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from support.jobs import quick_lake
from support.jobs.quick_jobs import QuickJobs
from support.lake.faults import Call
from tandem.delta.actions import AddFile
from tandem.delta.log.snapshot import Snapshot
from tandem.operations.kinds.commit_history import SnapshotView, VectorCache
from tandem.operations.machine.events import Effect, Event, Point
from tandem.spec.status import Phase

ROUNDS = 12


def test_a_round_looks_up_only_new_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer appends keys of the source, then deletes a row, before each round of a merge."""
    lake = quick_lake.make(tmp_path, 12)
    merge = lake.merge(tuple((key, 1, 7) for key in (*range(0, 120, 10), *range(1000, 1100))))
    looked_up: list[int] = []
    real = Snapshot.files_by_path

    def files_by_path(self: Snapshot, paths: Iterable[str]) -> dict[str, AddFile]:
        wanted = list(paths)
        if looked_up:
            looked_up[-1] += len(wanted)
        return real(self, wanted)

    def beside(effect: Effect, call: Call) -> Event:
        if effect.point is Point.RECONCILE and len(looked_up) < ROUNDS:
            number = len(looked_up)
            lake.append(((1000 + number, 2, 5), (5000 + number, 0, 0)))
            lake.foreign().delete(f"id = {5000 + number}")
            looked_up.append(0)
        return call()

    monkeypatch.setattr(Snapshot, "files_by_path", files_by_path)
    lake.do(merge, interceptor=beside, ports=lake.ports(jobs=QuickJobs(copies=True)))
    assert looked_up[3] == looked_up[-2] > 0, looked_up


def test_a_round_that_lost_its_version_puts_no_commit(tmp_path: Path) -> None:
    """Another writer commits after each round's evaluation. The first round finds out by its put,
    the later ones by a look at the log."""
    lake = quick_lake.make(tmp_path, 4)
    points: list[Point] = []

    def beside(effect: Effect, call: Call) -> Event:
        points.append(effect.point)
        if effect.point is Point.WRITE_SIDECARS and points.count(effect.point) <= ROUNDS:
            lake.append(((5000 + len(points), 2, 5),))
        return call()

    lake.do(lake.update("k = 1", v="v + 1"), interceptor=beside, ports=lake.ports())
    assert points.count(Point.RECONCILE) == ROUNDS + 1
    assert points.count(Point.PUT_COMMIT) == 2


def test_files_changed_in_a_later_version_are_not_reused(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path, 2)
    cache = VectorCache(lake.store)
    before = SnapshotView(lake.log.snapshot(), cache)
    paths = before.paths()
    before.prefetch(paths)
    assert lake.do(lake.delete("id = 3")).phase is Phase.SUCCEEDED
    now, expected = (SnapshotView(lake.log.snapshot(), cache) for _ in range(2))
    now.inherit(before, frozenset())
    assert [now.add(path) for path in paths] == [expected.add(path) for path in paths]
    assert [now.vector_id(path) for path in paths] != [before.vector_id(path) for path in paths]
    assert [now.add(path) is before.add(path) for path in paths].count(True) == 1
    named = SnapshotView(lake.log.snapshot(), cache)
    named.inherit(before, frozenset(paths))
    assert not any(named.add(path) is before.add(path) for path in paths)
