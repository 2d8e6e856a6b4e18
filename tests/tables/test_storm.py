"""W9: eight foreign writers in a loop, our compactions and updates beside them.

`TANDEM_STORM_SECONDS` says for how long (10 s by default, a minute with `TANDEM_EVERY_CASE`),
`TANDEM_STORM_PAUSE_MS` how long each writer rests between two tries (0: not at all). Our jobs are
not Spark's here, so that a minute costs little; instead each of them waits until a few others have
committed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.lake.lake import reason, reconciled
from support.some import few
from support.waiting import await_that
from tables.storm_model import OurUpdate, StormModel
from tandem.delta.scan import scan
from tandem.operations.machine.events import Effect, Event, Point
from tandem.spec.resources import Operation
from tandem.spec.status import OperationStatus, Phase

SECONDS = float(os.environ.get("TANDEM_STORM_SECONDS", str(few(3, 60))))
PAUSE_MS = int(os.environ.get("TANDEM_STORM_PAUSE_MS", "700"))
WRITERS = 8
LIMIT_S = 300
"""A wait as long as this means that something hangs."""

REST_S = 0.5
"""Between two operations of ours of one kind."""

MET = 4
"""So many commits of others at least pass while a job of ours runs."""

LOST_OF = 10
"""Of so many updates of ours one may be lost; the aim is none. It was one of five to nine while
rounds without progress were counted for ever (docs/decisions/0088)."""

SCHEMA = pa.schema([(name, pa.int64()) for name in ("id", "k", "v", "u")])
TESTS = Path(__file__).parent.parent


@dataclass
class Writers:
    """The foreign processes, and all that they say."""

    location: str
    answers: list[dict[str, Any]] = field(default_factory=list)
    children: list[subprocess.Popen[str]] = field(default_factory=list)
    ears: list[threading.Thread] = field(default_factory=list)

    def start(self, count: int, pause_ms: int) -> None:
        for number in range(1, count + 1):
            child = subprocess.Popen(
                [sys.executable, "-m", "tables.storm_writer", self.location, str(number),
                 str(pause_ms)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=TESTS,
            )  # fmt: skip
            self.children.append(child)
            ear = threading.Thread(target=self._listen, args=(child,), daemon=True)
            self.ears.append(ear)
            ear.start()

    def _listen(self, child: subprocess.Popen[str]) -> None:
        assert child.stdout is not None
        for line in child.stdout:
            self.answers.append(json.loads(line))

    def await_first_answers(self) -> None:
        """Until each of them has tried once: eight interpreters take a while to start."""
        await_that(
            lambda: (
                len({answer["tag"].split("-")[0] for answer in list(self.answers)})
                == len(self.children)
            ),
            "a first answer of every writer",
            limit_s=LIMIT_S,
        )

    def stop(self) -> None:
        for child in self.children:
            assert child.stdin is not None
            child.stdin.close()
        for child, ear in zip(self.children, self.ears, strict=True):
            ear.join(LIMIT_S)
            assert child.stdout is not None
            child.stdout.close()
            assert child.wait(LIMIT_S) == 0


class Loop:
    """An operation of ours again and again, with a rest between."""

    def __init__(
        self, lake: QuickLake, make: Callable[[int], Operation], stop: threading.Event
    ) -> None:
        self.ends: list[OperationStatus] = []
        self._error: BaseException | None = None
        self._lake = lake
        self._stop = stop

        def run() -> None:
            try:
                while not stop.wait(REST_S):
                    self.ends.append(lake.run(make(len(self.ends)), interceptor=self._interceptor))
            except BaseException as error:  # noqa: BLE001 - raised again by `join`
                self._error = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def _interceptor(self, effect: Effect, call: Callable[[], Event]) -> Event:
        """Before a result is read, others commit; when the storm is over, they need not."""
        if effect.point is Point.READ_RESULT and effect.round == 0:
            enough = self._lake.version + MET
            while self._lake.version < enough and not self._stop.wait(0.02):
                pass
        return call()

    def has_committed(self) -> bool:
        """Whether one of them committed; also true where the loop ended by an error, which `join`
        raises."""
        return not self._thread.is_alive() or any(
            end.result and end.result.version is not None for end in self.ends
        )

    def join(self) -> list[OperationStatus]:
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error
        return self.ends


@pytest.mark.timeout(SECONDS + 2 * LIMIT_S + 240)
def test_W9_eight_foreign_writers_in_a_loop_beside_our_operations(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = quick_lake.make(tmp_path, 0, schema=SCHEMA)
    writers = Writers(lake.location)
    stop = threading.Event()
    writers.start(WRITERS, PAUSE_MS)
    writers.await_first_answers()
    compactions = Loop(lake, lambda _: lake.compaction("SemiMajor"), stop)
    updates = Loop(lake, lambda n: _update(lake, n % 5), stop)
    stop.wait(SECONDS)
    # On a slow machine the storm lasts longer, until an operation of each kind has ended well.
    await_that(
        lambda: compactions.has_committed() and updates.has_committed(),
        "a compaction and an update that committed",
        limit_s=LIMIT_S,
    )
    stop.set()
    compacted, updated = compactions.join(), updates.join()
    writers.stop()

    tries = {answer["tag"]: answer for answer in writers.answers}
    model = StormModel(tries, _updates(updated))
    model.replay(lake.log.commits(0, lake.version))
    with capsys.disabled():
        print(_figures(writers, compacted, updated, lake.version))  # noqa: T201
    # Every commit that was reported exists; then every row is as the commits say.
    assert {tag for tag, answer in tries.items() if not answer["error"]} == model.committed
    for reader, rows in _readers(lake).items():
        assert model.faults(rows) == [], reader
    assert [end for end in compacted if end.phase is Phase.FAILED or end.attempt > 1] == []
    assert [end for end in updated if end.attempt > 1] == []
    # Whether a round without a foreign commit occurs within five tries is chance here.
    lost = [end for end in updated if end.phase is Phase.FAILED]
    assert [end for end in lost if reason(end) != "Conflict"] == []
    assert len(lost) <= max(1, len(updated) // LOST_OF)
    assert model.updates
    lake.assert_clean()


def _update(lake: QuickLake, k: int) -> Operation:
    """Each commit of theirs may give it new rows to look at, several a second; it has as many
    attempts as every update that does not ask for more."""
    return lake.update(f"k = {k}", u="u + 1")


def _updates(ends: list[OperationStatus]) -> dict[int, OurUpdate]:
    """Those that committed, by version; the n-th was of k = n % 5."""
    found = {}
    for n, end in enumerate(ends):
        version = end.result.version if end.result else None
        if version is not None and end.plan is not None:
            found[version] = OurUpdate(n % 5, end.plan.read_version, version)
    return found


def _readers(lake: QuickLake) -> dict[str, list[dict[str, int]]]:
    return {
        "tandem": pa.table(scan(lake.log.snapshot(), lake.store)).to_pylist(),
        "deltalake": pa.table(lake.foreign().scan()).to_pylist(),
    }


def _figures(
    writers: Writers,
    compacted: list[OperationStatus],
    updated: list[OperationStatus],
    versions: int,
) -> str:
    """For people: what became of ours, and of theirs by how long their transaction ran."""
    lines = [f"\nW9: {SECONDS:.0f} s, {WRITERS} foreign writers, {versions} versions"]
    for name, ends in (("compactions", compacted), ("updates", updated)):
        good = [end for end in ends if end.result and end.result.version is not None]
        lost = Counter(reason(end) for end in ends if end.phase is Phase.FAILED)
        rounds = Counter(reconciled(end).rounds for end in good)
        seen = [reconciled(end).commits_seen for end in good]
        lines.append(
            f"our {name}: {len(good)} committed, {sum(e.phase is Phase.SUPERSEDED for e in ends)} "
            f"superseded, {lost.total()} lost {dict(lost) or ''}, "
            f"{sum(end.attempt > 1 for end in ends)} tried again; commits of others met "
            f"{sum(seen)} (at most {max(seen, default=0)}), in rounds: "
            + (", ".join(f"{count} × {number}" for number, count in sorted(rounds.items())) or "0")
        )
    for low, high in ((0, 50), (50, 100), (100, 200), (200, 500), (500, 10**9)):
        of_this = [answer for answer in writers.answers if low <= answer["ms"] < high]
        aborted = sum(bool(answer["error"]) for answer in of_this)
        name = f"{low} to {high} ms" if high < 10**9 else f"{low} ms and more"
        lines.append(f"foreign transactions of {name}: {len(of_this)}, aborted {aborted}")
    return "\n".join(lines)
