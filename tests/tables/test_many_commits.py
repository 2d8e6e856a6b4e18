"""Z8, Z10: many who want the same version; many who commit while we are at work.

Jobs are not Spark's here (`quick_jobs`); files, log, engine and foreign writer are real.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.lake.lake import batch, loads, reconciled
from support.lake.rows import Row, Rows, id_in, join, without
from support.some import few
from tandem.operations.machine.events import Effect, Event, Point
from tandem.spec.status import Phase

WRITERS = few(20, 60)
COMMITS = few(30, 60)


def test_Z8_many_writers_want_the_same_version(tmp_path: Path) -> None:
    """All stand before the put of the same file, by put-if-absent on the local disk. One gets
    it; the others take the next ones, and no writer's rows are lost or doubled."""
    lake = quick_lake.make(tmp_path, 1)
    wanted = lake.version + 1
    held = [
        lake.hold(lake.ingest(batch(n, 2)), Point.PUT_COMMIT, ports=lake.ports())
        for n in range(10, 10 + WRITERS)
    ]
    for one in held:
        one.go_on()  # none waits for another
    done = [one.finish() for one in held]
    assert {one.phase for one in done} == {Phase.SUCCEEDED}
    assert {one.attempt for one in done} == {1}
    versions = sorted(one.result.version for one in done if one.result and one.result.version)
    assert versions == list(range(wanted, wanted + WRITERS))
    lake.assert_rows_so_far(join(batch(0), *(batch(n, 2) for n in range(10, 10 + WRITERS))))
    assert len(set(lake.names)) == len(lake.names) == WRITERS + 1
    lake.assert_clean()


@dataclass
class Beside:
    """A writer that commits all the time: two of three times an append; else a row is deleted,
    in turn by Tandem (a deletion vector) and by deltalake (the file is rewritten)."""

    lake: QuickLake
    appended: list[Row] = field(default_factory=list)
    gone: set[int] = field(default_factory=set)
    commits: int = 0

    def commit(self) -> None:
        self.commits += 1
        if self.commits % 3:
            self.appended.append((1000 + self.commits, 1, 1))
            self.lake.append((self.appended[-1],))
            return
        victim = len(self.gone)
        self.gone.add(victim)
        if self.commits % 2:
            self.lake.do(self.lake.delete(f"id = {victim}"))
        else:
            self.lake.foreign().delete(f"id = {victim}")

    def rows(self) -> Rows:
        return join(without(loads(range(4)), id_in(self.gone)), tuple(self.appended))


def test_Z10_compaction_as_long_as_many_commits_succeeds_the_first_time(tmp_path: Path) -> None:
    """Sixty commits while the job runs (one a second, if it took a minute), and one more each
    time that we are about to put, for a while."""
    lake = quick_lake.make(tmp_path, 4)
    beside = Beside(lake)

    def interceptor(effect: Effect, call: Callable[[], Event]) -> Event:
        if effect.point is Point.READ_RESULT:
            for _ in range(COMMITS):
                beside.commit()
        elif effect.point is Point.PUT_COMMIT and beside.commits < COMMITS + 5:
            beside.commit()
        return call()

    done = lake.do(lake.compaction("SemiMajor"), interceptor=interceptor)
    assert done.attempt == 1
    assert reconciled(done).commits_seen == COMMITS + 5
    lake.assert_rows_so_far(beside.rows())
    lake.do(lake.compaction("SemiMajor"))
    lake.assert_rows_so_far(beside.rows())
    lake.assert_clean()
