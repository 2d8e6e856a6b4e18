"""An ingest whose processes open it before and after the log of its table is made: whatever their
steps, its rows are loaded once.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from deltalake import write_deltalake

from mergelog.orders import Orders, rows
from mergelog.test_upserts import VECTORS
from support.documents import document
from support.jobs.quick_jobs import QuickJobs
from tandem import mergelog
from tandem.delta.log.delta_log import DeltaLog
from tandem.operations.execute import ExecutionOptions, finish, open_session
from tandem.operations.machine.events import Point
from tandem.operations.model import Table
from tandem.operations.session.session import Session
from tandem.spec.status import OperationStatus, Phase
from tandem.spec.update import TableIngest
from tandem.storage import open_store

LOADED = range(2, 5)


class Lake(Orders):
    """A table without a log, and a source."""

    def __init__(self, folder: Path) -> None:
        write_deltalake(str(folder), rows(range(3), "base", 1), configuration=VECTORS)
        super().__init__(folder)
        self.jobs = QuickJobs()
        source = self.source(rows(LOADED, "loaded", 2))
        self.resource = TableIngest.model_validate(
            document("TableIngest", "load", {"tableRef": {"name": "orders"}, "source": source})
        )

    def open(self) -> Session:
        store = open_store(self.location)
        table = Table(store, DeltaLog(store), "LakeTable/orders")
        return open_session(
            self.resource, table, self.ports(self.jobs), ExecutionOptions(poll_ms=1)
        )

    def make_log(self) -> None:
        settings = mergelog.LogSettings(("id",))
        assert mergelog.ensure_log(self.log, settings, now_ms=0, nonce="made meanwhile")

    def finish(self, session: Session) -> OperationStatus:
        return finish(session, self.resource, self.ports(self.jobs))

    def loads(self) -> tuple[int, int]:
        """How often the rows were loaded into the base table, and into the log."""
        base = self.base().count((3, 2, "loaded"))
        instants = [
            version
            for version in range(1, self.log.snapshot().version + 1)
            if any(self.log.log.commit(version).adds)  # type: ignore[union-attr]
        ]
        return base, len(instants)

    def end(self) -> None:
        """Other processes follow until one reports the end."""
        for _ in range(4):
            status = self.finish(self.open())
            if status.phase is Phase.SUCCEEDED:
                break
        assert status.phase is Phase.SUCCEEDED, status
        assert sum(self.loads()) == 1, self.loads()
        assert {row[0] for row in self.view()} == set(range(5))
        assert self.finish(self.open()).result == status.result


def until(session: Session, point: Point) -> None:
    while session.next_effect is None or session.next_effect.point is not point:
        assert session.advance()


def test_one_that_opened_before_the_log_sees_that_another_has_begun_on_it(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "t")
    early = lake.open()
    lake.make_log()
    assert lake.finish(lake.open()).phase is Phase.SUCCEEDED
    assert lake.loads() == (0, 1)
    assert lake.finish(early).conditions[0].reason == "Abandoned"
    assert lake.loads() == (0, 1)
    lake.end()


@pytest.mark.parametrize("point", [Point.START_JOB, Point.POLL_JOB, Point.PUT_COMMIT])
def test_one_that_opens_after_the_log_leaves_it_to_one_that_has_a_plan(
    tmp_path: Path, point: Point
) -> None:
    lake = Lake(tmp_path / "t")
    early = lake.open()
    lake.make_log()
    late = lake.open()
    until(early, point)
    assert lake.finish(late).conditions[0].reason == "Abandoned"
    lake.finish(early)
    lake.end()


@pytest.mark.parametrize("seed", range(12))
def test_whatever_their_steps_the_rows_are_loaded_once(tmp_path: Path, seed: int) -> None:
    """Some processes die in between."""
    chance = random.Random(seed)
    lake = Lake(tmp_path / "t")
    at_work = [lake.open() for _ in range(chance.randint(1, 2))]
    for _ in range(chance.randint(0, 8)):
        chance.choice(at_work).advance()
    lake.make_log()
    at_work += [lake.open() for _ in range(chance.randint(1, 2))]
    while at_work:
        session = chance.choice(at_work)
        if chance.random() < 0.03 or not session.advance():
            session.close()
            at_work.remove(session)
    lake.end()
