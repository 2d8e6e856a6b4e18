"""How statements of ours converge beside a foreign copy-on-write writer that never rests long.

Every commit of the other one rewrites files, so our statement must be evaluated on their
rows again: a round. A round begins when the table is read, and is the last one if no writer has
committed before our put. One that lost to a commit ends at most a round later, so that a statement
that needs less than half of the other's pause for a round commits in the next one at the latest.
That is what is asserted; how long rounds take here is printed, and depends on the machine.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from support.foreign.calls import Refused
from support.foreign.process import Process
from support.lake.lake import INSERT_ALL, Lake, Lakes, reason, reconciled
from tandem.delta.scan import scan
from tandem.operations.machine.events import Effect, Event, Point
from tandem.spec.resources import Operation
from tandem.spec.status import Phase

FILES = 8
ROWS = 50_000
"""Of each file."""

NEW = 1_000
"""Rows that the merge inserts."""

SCHEMA = pa.schema([(name, pa.int64()) for name in ("id", "k", "v", "w")])
Numbers = npt.NDArray[np.int64]
K: Numbers = np.arange(FILES * ROWS) % 5
ONES: Numbers = (K == 1).astype(np.int64)
GAVE_UP = r"\d rounds? made no progress; the last was lost to UPDATE by delta-rs.* files? part-"


@dataclass
class Beside:
    """`UPDATE SET w = w + 1 WHERE …` of some rows of one file, or of all, again and again."""

    lake: Lake
    engine: Process
    rest_s: float
    all_files: bool
    made: list[int] = field(default_factory=list)
    lost: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _committed: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _error: BaseException | None = None

    def __enter__(self) -> Beside:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._committed.wait(60)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._thread is not None
        self._stop.set()
        self._thread.join(60)
        if self._error is not None:
            raise self._error

    def wait_for_another(self) -> None:
        """Until it has committed once more."""
        self._committed.clear()
        assert self._committed.wait(60)

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._try()
                if self.made:
                    self._committed.set()
                self._stop.wait(self.rest_s)
        except BaseException as error:  # noqa: BLE001 - raised again by `__exit__`
            self._error = error
            self._committed.set()

    def _try(self) -> None:
        number = len(self.made)
        where = f"id % 100 = {number % 100}"
        if not self.all_files:
            file = number % FILES
            where += f" AND id >= {file * ROWS} AND id < {(file + 1) * ROWS}"
        self.engine.call("open", table="beside", location=self.lake.location)
        arguments = {"where": where, "set_": {"w": "w + 1"}}
        try:
            self.engine.call("act", table="beside", what="update", arguments=arguments)
        except Refused:
            self.lost += 1  # to us, by its own rules: the next try is the same again
            return
        self.made.append(number)

    def touched(self) -> Numbers:
        """How often it has added 1 to the row of each id."""
        found = np.zeros(FILES * ROWS, np.int64)
        for number in self.made:
            for file in range(FILES) if self.all_files else [number % FILES]:
                found[file * ROWS + number % 100 : (file + 1) * ROWS : 100] += 1
        return found


@dataclass
class Rounds:
    """When the table was read, and when a put was answered: between two of these is a round. The
    first result is read only when the other one has committed since we began, so that there is
    a round."""

    beside: Beside
    at: list[float] = field(default_factory=list)

    def interceptor(self, effect: Effect, call: Callable[[], Event]) -> Event:
        if effect.point is Point.READ_RESULT and effect.round == 0:
            self.beside.wait_for_another()
        reads = effect.point is Point.READ_TABLE and effect.attempt > 0
        if reads:
            self.at.append(time.monotonic())
        event = call()
        if effect.point is Point.PUT_COMMIT:
            self.at.append(time.monotonic())
        return event

    @property
    def seconds(self) -> list[float]:
        return [b - a for a, b in zip(self.at, self.at[1:], strict=False)]


@dataclass
class Stage:
    """A table of eight files, on which one statement of ours runs beside the other one."""

    lake: Lake
    engine: Process
    say: Callable[[str], None]

    def run(self, statement: Operation, rest_s: float, *, all_files: bool = False) -> Ended:
        with Beside(self.lake, self.engine, rest_s, all_files) as beside:
            rounds = Rounds(beside)
            begun = time.monotonic()
            done = self.lake.run(statement, interceptor=rounds.interceptor)
            seconds = time.monotonic() - begun
        longest = max(rounds.seconds)
        what = "all files" if all_files else "one file of eight"
        how = f"{reason(done)} after {seconds:.1f} s"
        if done.phase is Phase.SUCCEEDED:
            met = reconciled(done)
            how += f", {met.rounds} rounds, {met.rows_evaluated} rows in them"
        self.say(
            f"{statement.metadata.name}: {what} rewritten every {rest_s} s "
            f"({len(beside.made)} times, {beside.lost} lost to us): {how}; "
            f"a round took {longest:.2f} s at most"
        )
        if done.phase is Phase.FAILED:
            assert longest > rest_s / 2, done
            assert re.search(GAVE_UP, str(done.conditions)), done
        assert done.attempt == 1
        return Ended(done.phase is Phase.SUCCEEDED, beside.touched())

    def assert_rows(self, k: Numbers, v: Numbers, w: Numbers, gone: Numbers | None = None) -> None:
        """That they are these, by id, without those that are `gone`."""
        found = pa.table(scan(self.lake.log.snapshot(), self.lake.store)).sort_by("id")
        wanted = pa.table([pa.array(a) for a in (np.arange(len(k)), k, v, w)], schema=SCHEMA)
        if gone is not None:
            wanted = wanted.filter(pa.array(~gone))
        assert found.num_rows == wanted.num_rows
        for name in SCHEMA.names:
            assert found.column(name).to_pylist() == wanted.column(name).to_pylist(), name


@dataclass(frozen=True)
class Ended:
    """Whether ours committed, and what the other one has done by then."""

    committed: bool
    touched: Numbers


@pytest.fixture
def stage(
    spark: SparkSession,
    tmp_path: Path,
    foreign_deltalake: Process,
    capsys: pytest.CaptureFixture[str],
) -> Stage:
    lake = Lakes(spark, tmp_path, tmp_path).empty(schema=SCHEMA)
    for number in range(FILES):
        lake.append(_rows(number * ROWS, (number + 1) * ROWS))

    def say(what: str) -> None:
        with capsys.disabled():
            print(f"\n{what}", end=" ")  # noqa: T201

    return Stage(lake, foreign_deltalake, say)


@pytest.mark.parametrize("rest_s", [2.0, 1.0, 0.5])
@pytest.mark.parametrize("all_files", [False, True], ids=["one-of-eight-files", "all-files"])
def test_W2_an_update_converges_beside_a_copy_on_write_writer(
    stage: Stage, rest_s: float, all_files: bool
) -> None:
    ended = stage.run(stage.lake.update("k = 1", v="v + 1"), rest_s, all_files=all_files)
    stage.assert_rows(K, ONES * ended.committed, ended.touched)


@pytest.mark.parametrize("all_files", [False, True], ids=["one-of-eight-files", "all-files"])
def test_W2_a_delete_converges_beside_a_copy_on_write_writer(stage: Stage, all_files: bool) -> None:
    ended = stage.run(stage.lake.delete("k = 1"), 1.0, all_files=all_files)
    gone = (K == 1) & ended.committed
    stage.assert_rows(K, np.zeros_like(K), ended.touched, gone)


@pytest.mark.parametrize("inserts", [False, True], ids=["update", "upsert"])
def test_W2_a_merge_converges_beside_a_copy_on_write_writer(stage: Stage, inserts: bool) -> None:
    source = _rows(FILES * ROWS - NEW, FILES * ROWS + NEW * inserts)
    clauses: dict[str, Any] = {"whenMatched": [{"update": {"set": {"v": "t.v + 1"}}}]}
    clauses |= INSERT_ALL if inserts else {}
    ended = stage.run(stage.lake.merge(source, **clauses), 1.0)
    old, new = np.arange(FILES * ROWS), np.arange(NEW * inserts * ended.committed)
    merged = (old >= FILES * ROWS - NEW).astype(np.int64) * ended.committed
    stage.assert_rows(
        np.append(K, new % 5),
        np.append(merged, np.zeros_like(new)),
        np.append(ended.touched, np.zeros_like(new)),
    )


def _rows(first: int, end: int) -> pa.Table:
    ids = np.arange(first, end)
    zeros = np.zeros_like(ids)
    return pa.table([pa.array(a) for a in (ids, ids % 5, zeros, zeros)], schema=SCHEMA)
