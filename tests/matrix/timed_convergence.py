"""How an update of ours converges beside a foreign copy-on-write writer that never rests.

Every commit of the other one writes files anew, so our statement must be evaluated on their
rows again: a round. It converges as long as a round takes less time than the other one rests;
only rounds without progress count towards `conflict.maxAttempts`.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from support.foreign_process import Process
from support.tables import Lake, Lakes, reconciled
from tandem.delta.scan import scan
from tandem.spec.status import Phase

FILES = 8
ROWS = 50_000
"""Of each file."""

SCHEMA = pa.schema([(name, pa.int64()) for name in ("id", "k", "v", "w")])


@dataclass
class Beside:
    """`UPDATE SET w = w + 1 WHERE …` of one file, or of some rows of all, again and again."""

    lake: Lake
    engine: Process
    rest_s: float
    all_files: bool
    commits: int = 0
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

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._commit()
                self._committed.set()
                self._stop.wait(self.rest_s)
        except BaseException as error:  # noqa: BLE001 - raised again by `__exit__`
            self._error = error
            self._committed.set()

    def _commit(self) -> None:
        where = f"id % 100 = {self.commits % 100}"
        if not self.all_files:
            file = self.commits % FILES
            where += f" AND id >= {file * ROWS} AND id < {(file + 1) * ROWS}"
        self.engine.call("open", table="beside", location=self.lake.location)
        self.engine.call(
            "act",
            table="beside",
            what="update",
            arguments={"where": where, "set_": {"w": "w + 1"}},
        )
        self.commits += 1


@pytest.mark.parametrize("rest_s", [2.0, 1.0, 0.5])
@pytest.mark.parametrize("all_files", [False, True], ids=["one-of-eight-files", "all-files"])
def test_W2_update_converges_beside_a_copy_on_write_writer(
    delta_spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    foreign_deltalake: Process,
    capsys: pytest.CaptureFixture[str],
    rest_s: float,
    all_files: bool,
) -> None:
    root = tmp_path_factory.mktemp("convergence")
    lake = Lakes(delta_spark, root, root).empty(schema=SCHEMA)
    for number in range(FILES):
        lake.append(_rows(number))
    with Beside(lake, foreign_deltalake, rest_s, all_files) as beside:
        begun = time.monotonic()
        done = lake.run(lake.update("k = 1", v="v + 1"))
        seconds = time.monotonic() - begun
    with capsys.disabled():
        what = "all files" if all_files else "one file of eight"
        print(  # noqa: T201
            f"\na foreign commit of {what} every {rest_s} s: {done.phase.value.lower()} after "
            f"{seconds:.1f} s, attempt {done.attempt}"
            + (f", {reconciled(done)}" if done.phase is Phase.SUCCEEDED else f": {done.conditions}")
        )
    assert done.phase is Phase.SUCCEEDED
    assert done.attempt == 1
    found = pa.table(scan(lake.log.snapshot(), lake.store)).sort_by("id")
    ids = range(FILES * ROWS)
    assert found.column("id").to_pylist() == list(ids)
    assert found.column("v").to_pylist() == [int(n % 5 == 1) for n in ids]
    assert sum(found.column("w").to_pylist()) == _touched(beside)


def _rows(number: int) -> pa.Table:
    ids = pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64())
    zeros = pa.array([0] * ROWS, pa.int64())
    k = pa.array([n % 5 for n in range(number * ROWS, (number + 1) * ROWS)], pa.int64())
    return pa.table([ids, k, zeros, zeros], schema=SCHEMA)


def _touched(beside: Beside) -> int:
    return beside.commits * (ROWS // 100) * (FILES if beside.all_files else 1)
