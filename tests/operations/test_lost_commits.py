"""A commit that did not happen: whether another writer was faster, or not. Only a race counts as
one in `tandem_commit_races_lost_total`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.lake.lake import batch
from tandem.delta.log.listing import commit_path
from tandem.delta.log.maintenance import write_checkpoint
from tandem.errors import OutcomeUnknown
from tandem.operations.machine.events import CommitLost, Effect, Event, Point
from tandem.spec.status import Phase
from tandem.storage import Store


class Hindered:
    """A store whose next put of a commit is preceded, or replaced, by something else."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.before_put: Callable[[], object] = lambda: None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put_if_absent(self, path: str, data: bytes) -> None:
        if path.startswith("_delta_log/"):
            act, self.before_put = self.before_put, lambda: None
            act()
        self._store.put_if_absent(path, data)


class Stage:
    """A table, a compaction of it, and what is lost on its way."""

    def __init__(self, folder: Path) -> None:
        self.lake = quick_lake.make(folder)
        self.store = Hindered(self.lake.store)
        self.lake.store = cast(Any, self.store)
        self.lost: list[tuple[Point, CommitLost]] = []
        self.expected = list(range(4))
        self._folder = folder
        self._count = 0

    def other(self) -> QuickLake:
        """The table, as another process has opened it."""
        return quick_lake.at(self.lake.location, self._folder / "other")

    def append(self) -> None:
        number = 7 + self._count
        self._count += 1
        self.other().append(batch(number))
        self.expected.append(number)

    def compact(self, before: Callable[[Effect], object] = lambda _: None) -> None:
        def interceptor(effect: Effect, call: Callable[[], Event]) -> Event:
            before(effect)
            event = call()
            if isinstance(event, CommitLost):
                self.lost.append((effect.point, event))
            return event

        status = self.lake.run(self.lake.compaction("Major"), interceptor=interceptor)
        assert status.phase is Phase.SUCCEEDED, status
        self.lake.assert_rows_so_far(tuple(row for n in self.expected for row in batch(n)))


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_a_version_that_another_writer_took_is_a_lost_race(stage: Stage) -> None:
    """At the put, and from the second round on by a look before the side files are written."""
    appends = [Point.PUT_COMMIT, Point.WRITE_SIDECARS]

    def before(effect: Effect) -> None:
        if appends and effect.point is appends[0]:
            appends.pop(0)
            stage.append()

    stage.compact(before)
    assert stage.lost == [
        (Point.PUT_COMMIT, CommitLost(raced=True)),
        (Point.WRITE_SIDECARS, CommitLost(raced=True)),
    ]


def test_a_put_that_never_arrives_loses_no_race(stage: Stage) -> None:
    def never_arrives() -> None:
        raise OutcomeUnknown("timed out")

    stage.store.before_put = never_arrives
    stage.compact()
    assert stage.lost == [(Point.LOOK_UP_COMMIT, CommitLost())]


def test_a_decision_on_a_version_that_left_the_log_loses_no_race(stage: Stage) -> None:
    """Log clean-up has deleted that version while the process was paused."""
    left: list[int] = []

    def before(effect: Effect) -> None:
        if effect.point is Point.PUT_COMMIT and not left:
            left.append(stage.lake.version)
            _clean_log(stage.other(), up_to=left[0])

    stage.compact(before)
    assert stage.lost == [(Point.PUT_COMMIT, CommitLost())]


def test_a_put_below_a_checkpoint_is_withdrawn_and_made_again(stage: Stage) -> None:
    """The process was paused between its last look at the log and its put: meanwhile the version
    was taken by another writer, and deleted by log clean-up. The put succeeds, but no reader sees
    the commit."""
    version = stage.lake.version + 1

    def while_paused() -> None:
        stage.append()
        stage.append()
        _clean_log(stage.other(), up_to=version)

    stage.store.before_put = while_paused
    stage.compact()
    assert stage.lost == [(Point.PUT_COMMIT, CommitLost())]
    assert not (stage.lake.path / commit_path(version)).exists()
    assert stage.lake.version == version + 2


def _clean_log(lake: QuickLake, *, up_to: int) -> None:
    """A checkpoint of the latest version; no commit up to one is left."""
    write_checkpoint(lake.log, lake.log.snapshot(), now_ms=1)
    for version in range(up_to + 1):
        (lake.path / commit_path(version)).unlink(missing_ok=True)
