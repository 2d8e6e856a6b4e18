"""The store fails just before a commit is put: what is in the log then is not ours."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from support.jobs.quick_lake import QuickLake, make
from support.lake.held import Held
from support.lake.lake import Process, batch, loads
from tandem.errors import StorageError
from tandem.locks.store import InProcessLocks
from tandem.operations.machine.events import Effect, Event, Point
from tandem.operations.ports import LocalClaims, Ports
from tandem.spec.status import Phase


def _of_process(lake: QuickLake, pid: int) -> Ports:
    return lake.ports(
        locks=InProcessLocks(), processes=Process(pid, {pid}), local_claims=LocalClaims()
    )


def test_a_commit_of_another_writer_is_not_taken_for_one_that_was_never_put(
    tmp_path: Path,
) -> None:
    """Neither has a token. The paused process reported that version, and deleted its own files,
    which another process had committed, as unused by it."""
    lake = make(tmp_path, 1)
    ingest = lake.ingest(batch(1))
    failed: list[Effect] = []

    def fails_once(effect: Effect, call: Callable[[], Event]) -> Event:
        if effect.point is Point.PUT_COMMIT and not failed:
            failed.append(effect)
            raise StorageError("the store does not answer", resource="lake")
        return call()

    paused = Held(
        "paused",
        lambda hold: lake.run(
            ingest,
            ports=_of_process(lake, 1),
            interceptor=lambda effect, call: hold(effect, lambda: fails_once(effect, call)),
        ),
    ).start(Point.WRITE_SIDECARS)
    lake.append(batch(2))
    done = lake.do(ingest, ports=_of_process(lake, 2))
    status = paused.finish()
    assert failed
    assert status.phase is Phase.SUCCEEDED
    assert (status.result and status.result.version) == (done.result and done.result.version)
    lake.assert_rows(loads(range(3)))
    lake.assert_clean()
