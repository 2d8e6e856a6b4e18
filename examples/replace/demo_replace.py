"""A month of flights is replaced while a stream appends to it and a compaction rewrites it.

    make demo-replace

The flights of February to April 2013, in daily loads by `deltalake`. A stream of `deltalake`
appends flights of March that were reported late. Meanwhile (`march.yaml`)

1. a compaction of March starts;
2. a `TableReplace` of March by corrected rows starts: it gets its locks, and its start is fixed;
3. the compaction commits, and the stream has appended at least `BATCHES` batches more;
4. the replace commits.

This order is forced at the engine's named points, never by a delay. The old rows are gone, wherever
the compaction has put them. The late ones are counted, and all of them stay: `deltalake` must read
the rows that DuckDB computes.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import data
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import CommitProperties, write_deltalake
from deltalake.exceptions import CommitFailedError
from demo import Gate, Hook
from showing import console, relocated, show_outcomes, verdict

from tandem.cli.report import ProgressDisplay
from tandem.delta.log.delta_log import DeltaLog
from tandem.jobs.runner import JobRunner
from tandem.operations import runner as engine
from tandem.operations.execute import ExecutionOptions
from tandem.operations.machine.events import Effect, Event, Point
from tandem.operations.ports import Ports
from tandem.operations.session.job_control import FileJobs
from tandem.spark.local_spark import LocalRunner
from tandem.spec import AnyResource, load
from tandem.spec.replace import TableReplace
from tandem.spec.resources import ResourceOutcome
from tandem.spec.status import OperationStatus
from tandem.storage import open_store

FILE = Path(__file__).resolve().with_name("march.yaml")
WORK = Path(os.environ.get("TANDEM_CACHE", Path.home() / ".cache" / "tandem")) / "demo-replace"
BATCHES, BATCH_ROWS, PAUSE_S = 4, 50, 0.2
MARCH = (
    "time_hour >= TIMESTAMPTZ '2013-03-01 00:00:00Z' "
    "AND time_hour < TIMESTAMPTZ '2013-04-01 00:00:00Z'"
)
CORRECTED = f"SELECT * REPLACE (dep_delay - 5 AS dep_delay) FROM flights WHERE {MARCH}"
LATE = f"SELECT * REPLACE (flight + 10000 AS flight) FROM flights WHERE {MARCH} ORDER BY ALL"


class Stream:
    """Appends batches of late flights of March until it is stopped; each names its number in its
    commit."""

    def __init__(self, folder: Path, late: pa.Table) -> None:
        self._folder, self._late = folder, late
        self._over = threading.Event()
        self._lock = threading.Condition()
        self.batches: list[pa.Table] = []

    def run(self) -> None:
        while not self._over.is_set():
            number = len(self.batches)
            start = number * BATCH_ROWS % (self._late.num_rows - BATCH_ROWS)
            batch = self._late.slice(start, BATCH_ROWS)
            if not self._append(batch, number):
                continue
            with self._lock:
                self.batches.append(batch)
                self._lock.notify_all()
            self._over.wait(PAUSE_S)

    def _append(self, batch: pa.Table, number: int) -> bool:
        """Whether it was committed. deltalake refuses an append beside a commit that removes files
        (`CommitFailedError`); nothing is written then, and the batch comes again."""
        named = CommitProperties(custom_metadata={"batch": str(number)})
        try:
            write_deltalake(str(self._folder), batch, mode="append", commit_properties=named)
        except CommitFailedError:
            return False
        return True

    def wait_for(self, more: int) -> None:
        """Until it has appended so many batches more, or has ended."""
        with self._lock:
            wanted = len(self.batches) + more
            self._lock.wait_for(lambda: len(self.batches) >= wanted, timeout=60)

    def stop(self) -> None:
        self._over.set()


def load_days(flights: duckdb.DuckDBPyConnection, folder: Path) -> int:
    """Each day as a load of its own; the number of rows."""
    days = flights.execute("SELECT DISTINCT month, day FROM flights ORDER BY ALL").fetchall()
    for done, (month, day) in enumerate(days):
        rows = flights.sql(f"SELECT * FROM flights WHERE month = {month} AND day = {day}")
        write_deltalake(
            str(folder),
            rows.to_arrow_table(),
            mode="append",
            configuration=None if done else {"delta.enableDeletionVectors": "true"},
        )
    return int(flights.execute("SELECT count(*) FROM flights").fetchall()[0][0])


def run_both(
    resources: list[AnyResource], stream: Stream, jobs: JobRunner
) -> list[ResourceOutcome]:
    """The compaction and the replace beside the stream, in the order above."""
    table, compaction, replace = resources
    ports = Ports(jobs=FileJobs(jobs))
    compaction_planned, replace_planned, compacted = Gate(), Gate(), Gate()
    reconciled = threading.Event()

    def of_compaction(effect: Effect, call: Callable[[], Event]) -> Event:
        if effect.point is Point.RECONCILE:
            replace_planned.wait()
        event = call()
        if effect.point is Point.PERSIST_PLAN:
            compaction_planned.arrive()
        return event

    def of_replace(effect: Effect, call: Callable[[], Event]) -> Event:
        if effect.point is Point.RECONCILE and not reconciled.is_set():
            reconciled.set()
            compacted.wait()
            stream.wait_for(BATCHES)
        event = call()
        if effect.point is Point.PERSIST_PLAN:
            replace_planned.arrive()
        return event

    with ProgressDisplay() as display, ThreadPoolExecutor(3) as pool:

        def side(wanted: AnyResource, hook: Hook, *gates: Gate) -> list[ResourceOutcome]:
            options = engine.RunOptions(ports, execution=ExecutionOptions(interceptor=hook))
            try:
                return engine.run([table, wanted], options, observer=display)[1:]
            finally:
                for gate in gates:
                    gate.force()

        streaming = pool.submit(stream.run)
        first = pool.submit(side, compaction, of_compaction, compaction_planned, compacted)
        compaction_planned.wait()
        stream.wait_for(1)
        second = pool.submit(side, replace, of_replace, replace_planned)
        try:
            return [*first.result(), *second.result()]
        finally:
            stream.stop()
            streaming.result()


def versions_of_batches(folder: Path) -> dict[int, int]:
    """Batch → the version of its commit."""
    log = DeltaLog(open_store(folder.as_uri()))
    infos = {c.version: c.info for c in log.commits(0, log.snapshot().version) if c.info}
    return {int(info.body["batch"]): v for v, info in infos.items() if "batch" in info.body}


def run(work: Path, flights: duckdb.DuckDBPyConnection, jobs: JobRunner) -> bool:
    """The whole story; whether everything was right.

    Args:
        flights: what is loaded, as table `flights`; afterwards what the table must hold.
    """
    folder, source = work / "flights", work / "corrected.parquet"
    work.mkdir(parents=True, exist_ok=True)
    console.rule("The flights of February to April 2013, as daily loads")
    console.print(f"{load_days(flights, folder):,} rows in {folder}")
    pq.write_table(flights.sql(CORRECTED).to_arrow_table(), source)
    stream = Stream(folder, flights.sql(LATE).to_arrow_table())
    resources = relocated(load([FILE]), folder)
    for at, resource in enumerate(resources):
        if isinstance(resource, TableReplace) and resource.spec.source is not None:
            there = resource.spec.source.model_copy(update={"location": source.as_uri()})
            spec = resource.spec.model_copy(update={"source": there})
            resources[at] = resource.model_copy(update={"spec": spec})
    console.rule("March is replaced, beside a compaction of March and a stream that appends to it")
    outcomes = run_both(resources, stream, jobs)
    show_outcomes(outcomes)
    status = outcomes[-1].status
    result = status.result if isinstance(status, OperationStatus) else None
    replaced = None if result is None else result.replaced
    if result is None or replaced is None or replaced.start_version is None:
        return verdict("the replace succeeded", right=False)

    version, start = result.version or 0, replaced.start_version
    committed = versions_of_batches(folder)
    old = [b for b, at in committed.items() if at <= start]
    late = [b for b, at in committed.items() if start < at < version]
    console.print(
        f"The start was version {start}, the commit version {version}. {replaced.rows:,} old rows "
        f"were replaced, {replaced.late or 0:,} late ones stay. Of {len(committed)} batches of the "
        f"stream, {len(old)} came before the start, {len(late)} while the replace ran, and "
        f"{len(committed) - len(old) - len(late)} afterwards.",
        highlight=False,
    )
    right = verdict(
        f"the compaction committed between the two, as version {_version(outcomes[0])}",
        start < _version(outcomes[0]) < version,
    )
    right &= verdict(
        f"the {len(late)} batches that came meanwhile have {len(late) * BATCH_ROWS:,} rows, as "
        "the result says",
        replaced.late == len(late) * BATCH_ROWS and len(late) >= BATCHES,
    )
    march = flights.sql(CORRECTED).to_arrow_table()
    flights.register("march", march)
    flights.execute(f"DELETE FROM flights WHERE {MARCH}")
    flights.execute("INSERT INTO flights FROM march")
    for batch in committed:
        if batch not in old:
            flights.register("batch", stream.batches[batch])
            flights.execute("INSERT INTO flights FROM batch")
    rows = data.read_by_deltalake(folder)
    return right & verdict(
        f"deltalake's {rows.num_rows:,} rows are those that DuckDB computes",
        data.differences(flights, rows) == 0,
    )


def _version(outcome: ResourceOutcome) -> int:
    status = outcome.status
    result = status.result if isinstance(status, OperationStatus) else None
    return -1 if result is None or result.version is None else result.version


def main() -> int:
    began = time.monotonic()
    shutil.rmtree(WORK, ignore_errors=True)
    flights = data.loaded(data.unpack(WORK))
    flights.execute("DELETE FROM flights WHERE month NOT IN (2, 3, 4)")
    right = run(WORK, flights, LocalRunner())
    console.rule()
    console.print(f"Took {time.monotonic() - began:.0f} s. Look around:")
    console.print(f"  .venv/bin/tandem history {WORK / 'flights'}", highlight=False)
    console.print(
        f"  .venv/bin/tandem timeline {WORK / 'flights'} --time-column time_hour "
        "--granularity Month",
        highlight=False,
    )
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
