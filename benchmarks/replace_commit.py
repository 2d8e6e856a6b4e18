"""Two parts of replaces alone: a drop of whole files, and the last round of a replace AtCommit.

The drop is measured from its start to its end, with the log read from disk. The rounds are those
that a rival forces to repeat: from the read of the latest version to the put's response.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import time
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa

from benchmarks import data
from benchmarks.harness import WrongResult, timed

DAY_0 = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
SCHEMA = pa.schema([("id", pa.int64()), ("ts", pa.timestamp("us", tz="UTC"))])
FILES_A_DAY, ROWS_A_FILE = 100, 24


def interval(day: int) -> tuple[str, str]:
    start = DAY_0 + dt.timedelta(days=day)
    return f"{start:%Y-%m-%dT%H:%M:%SZ}", f"{start + dt.timedelta(days=1):%Y-%m-%dT%H:%M:%SZ}"


def write_log(root: Path, days: int, dropped: int) -> None:
    """A table of days of a hundred files each, as a checkpoint. Only the files of one day exist:
    nothing reads the others."""
    import pyarrow.parquet as pq
    from deltalake import DeltaTable

    from tandem.delta.actions import AddFile
    from tandem.delta.log.codec import encode_action
    from tandem.delta.log.delta_log import DeltaLog
    from tandem.delta.log.maintenance import write_checkpoint
    from tandem.storage import open_store

    configuration = {"delta.enableDeletionVectors": "true"}
    DeltaTable.create(root.as_uri(), SCHEMA, configuration=configuration)
    start = DAY_0 + dt.timedelta(days=dropped)
    hours = [start + dt.timedelta(hours=hour) for hour in range(ROWS_A_FILE)]
    first = root / "first.parquet"
    pq.write_table(pa.table([pa.array(range(ROWS_A_FILE)), pa.array(hours)], schema=SCHEMA), first)
    size = first.stat().st_size
    lines = [json.dumps({"commitInfo": {"timestamp": 1, "operation": "WRITE"}})]
    for number in range(days * FILES_A_DAY):
        name, day = f"part-{number:07}.parquet", number // FILES_A_DAY
        at = DAY_0 + dt.timedelta(days=day)
        low, high = (f"{at + dt.timedelta(hours=h):%Y-%m-%dT%H:%M:%S.000Z}" for h in (0, 23))
        stats = {
            "numRecords": ROWS_A_FILE,
            "minValues": {"id": 0, "ts": low},
            "maxValues": {"id": ROWS_A_FILE - 1, "ts": high},
            "nullCount": {"id": 0, "ts": 0},
        }
        add = AddFile(name, {}, size, 1, True, stats=json.dumps(stats))
        lines.append(json.dumps(encode_action(add)))
        if day == dropped:
            os.link(first, root / name)
    first.unlink()
    for version, actions in ((1, lines), (2, lines[:1])):
        (root / f"_delta_log/{version:020d}.json").write_text("\n".join(actions) + "\n")
    log = DeltaLog(open_store(root.as_uri()))
    write_checkpoint(log, log.snapshot(), now_ms=2)


def drop(source: str, folder: str, dropped: int) -> dict[str, Any]:
    """In a separate process: one drop of a day on a copy of the table."""
    from support.jobs.quick_jobs import QuickJobs
    from tandem.delta.log.delta_log import DeltaLog
    from tandem.locks.store import InProcessLocks
    from tandem.operations import runner as engine
    from tandem.operations.ports import Ports
    from tandem.operations.session.job_control import FileJobs
    from tandem.spec import parse
    from tandem.storage import open_store

    table = data.copy_table(Path(source), Path(folder) / "table")
    api = "tandem.dev/v1alpha1"
    lake = {"location": table.as_uri(), "time": {"column": "ts", "granularity": "Day"}}
    replace = {"replace": {"intervals": ["/".join(interval(dropped))]}}
    resources = [
        parse({"apiVersion": api, "kind": kind, "metadata": {"name": name}, "spec": spec})
        for kind, name, spec in (
            ("LakeTable", "lake", lake),
            ("TableReplace", "drop", {"tableRef": {"name": "lake"}, **replace}),
        )
    ]
    jobs = QuickJobs()
    ports = Ports(jobs=FileJobs(cast(Any, jobs)), locks=InProcessLocks())
    options = engine.RunOptions(ports, poll_ms=20, probe=False)
    seconds, outcomes = timed(engine.run, resources, options)
    result = cast(Any, outcomes[-1].status).result
    if result is None or result.replaced.rows != FILES_A_DAY * ROWS_A_FILE:
        raise WrongResult(str(outcomes[-1].status))
    if result.replaced.empty_chunks != 1 or result.files_removed != FILES_A_DAY:
        raise WrongResult(f"{result.replaced}, {result.files_removed} files")
    snapshot = DeltaLog(open_store(table.as_uri())).snapshot()
    return {"seconds": seconds, "files": snapshot.num_files, "jobs": len(jobs.started)}


def delete_with_deltalake(source: str, folder: str, dropped: int) -> dict[str, Any]:
    from deltalake import DeltaTable

    table = data.copy_table(Path(source), Path(folder) / "table")

    def delete() -> Any:
        low, high = interval(dropped)
        return DeltaTable(table.as_uri()).delete(f"ts >= '{low}' and ts < '{high}'")

    seconds, did = timed(delete)
    if did["num_deleted_rows"] != FILES_A_DAY * ROWS_A_FILE:
        raise WrongResult(str(did))
    return {"seconds": seconds, "files": len(DeltaTable(table.as_uri()).file_uris()), "jobs": 0}


def delete_with_spark(source: str, folder: str, dropped: int, times: int) -> list[dict[str, Any]]:
    """Deletes of a day on copies of the table, on a session that is warm from one before."""
    from delta.tables import DeltaTable

    from benchmarks.warm import start_delta

    spark = start_delta()
    low, high = interval(dropped)
    found = []
    for turn in range(times + 1):
        table = data.copy_table(Path(source), Path(folder) / f"table-{turn}")
        text = f"ts >= '{low}' AND ts < '{high}'"
        seconds, _ = timed(lambda t=table, w=text: DeltaTable.forPath(spark, str(t)).delete(w))
        did = DeltaTable.forPath(spark, str(table)).history(1).collect()[0]["operationMetrics"]
        if did["numDeletedRows"] != str(FILES_A_DAY * ROWS_A_FILE):
            raise WrongResult(str(did))
        if turn:
            found.append({"seconds": seconds})
    spark.stop()
    return found


# The last round.

SEGMENTS = 64


class Rounds:
    """Intercepts an operation: a rival commits before each of its puts but the last. Keeps the
    milliseconds and the CPU milliseconds of each round after the first, without the rival's."""

    def __init__(self, rival: Any, rounds: int) -> None:
        self._rival, self._left = rival, rounds
        self._begun = (0.0, 0.0)
        self.milliseconds: list[tuple[float, float]] = []
        self._first = True

    def __call__(self, effect: Any, call: Any) -> Any:
        from tandem.operations.machine.events import Point

        if effect.point is Point.READ_TABLE:
            self._begun = (time.perf_counter(), time.process_time())
        if effect.point is not Point.PUT_COMMIT:
            return call()
        before = (time.perf_counter(), time.process_time())
        if self._left:
            self._left -= 1
            self._rival()
        after = (time.perf_counter(), time.process_time())
        event = call()
        ended = (time.perf_counter(), time.process_time())
        if not self._first:
            wall, cpu = (
                (ended[clock] - after[clock] + before[clock] - self._begun[clock]) * 1000
                for clock in (0, 1)
            )
            self.milliseconds.append((wall, cpu))
        self._first = False
        return event


def last_rounds(folder: str, rival: str, rows: int, masked: int, rounds: int) -> dict[str, Any]:
    """In a separate process: one replace AtCommit of a day, of which each file has some rows."""
    from support.jobs import quick_lake
    from support.lake.timed import DAYS, TimedLake
    from tandem.spec.status import Phase

    lake = quick_lake.make(Path(folder), 0, schema=SCHEMA)
    lake.time = DAYS
    each = masked // SEGMENTS
    day = np.arange(rows) * (86_400_000_000 // rows)
    day[each:] += 86_400_000_000 * np.where(np.arange(rows - each) % 2, 1, -1)
    base = int((DAY_0 + dt.timedelta(days=1)).timestamp() * 1e6)

    def table(ids: Any, times: Any) -> pa.Table:
        return pa.table([pa.array(ids), pa.array(times, pa.int64()).cast(SCHEMA.types[1])],
                        schema=SCHEMA)  # fmt: skip

    for number in range(SEGMENTS):
        lake.append(table(np.arange(number * rows, (number + 1) * rows), day + base))
    turns = iter(range(rounds))

    def rivals_turn() -> None:
        turn = next(turns)
        if rival == "append":
            lake.append(table([10**9 + turn], [base + turn]))
        elif lake.run(lake.delete(f"id = {each + turn}")).phase is not Phase.SUCCEEDED:
            raise WrongResult("the rival's delete failed")

    replace = TimedLake(lake).replace(
        "/".join(interval(1)), scope="AtCommit", source={
            "format": "Parquet", "location": lake.source(table([2 * 10**9], [base])).as_uri()}
    )  # fmt: skip
    watch = Rounds(rivals_turn, rounds)
    status = lake.run(replace, interceptor=watch)
    result = status.result
    if status.phase is not Phase.SUCCEEDED or result is None or result.replaced is None:
        raise WrongResult(str(status))
    more = rounds if rival == "append" else 0
    if result.replaced.rows != SEGMENTS * each + more or result.replaced.empty_chunks != 0:
        raise WrongResult(str(result.replaced))
    left = sorted(pa.table(lake.foreign().scan())["id"].to_pylist())
    if len(left) != SEGMENTS * (rows - each) + 1 - (rounds if rival == "delete" else 0):
        raise WrongResult(f"deltalake reads {len(left)} rows")
    return {"wall": [wall for wall, _ in watch.milliseconds],
            "cpu": [cpu for _, cpu in watch.milliseconds]}  # fmt: skip
