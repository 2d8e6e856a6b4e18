"""Replaces of one chunk while two writers append to it and a compactor compacts it.

Each engine replaces the chunk by 2,000 rows, again and again; the appenders are processes of
deltalake. Afterwards the log decides: of each replace, which rows had come since its start, and
which of them the table shows after it.
"""

from __future__ import annotations

import datetime as dt
import json
import shutil
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.engine import Engine
from benchmarks.goodput import PATIENCE_S, Arena
from benchmarks.harness import WrongResult, await_child, start_child, without_folder

APPENDERS = 2
APPENDED, SOURCE_ROWS, BASE_FILES = 100, 2_000, 20
PAUSE_S = 0.1
"""Between two appends of one appender."""
OF_APPENDERS, OF_BASE = -1, -2
"""In the column `load`; rows of a replace have its number."""
DAY = dt.datetime(2013, 3, 2, tzinfo=dt.UTC)
NEXT = DAY + dt.timedelta(days=1)
WHERE = "ts >= '2013-03-02T00:00:00Z' and ts < '2013-03-03T00:00:00Z'"
SCHEMA = pa.schema([("id", pa.int64()), ("load", pa.int32()), ("ts", pa.timestamp("us", tz="UTC"))])


def rows(first: int, count: int, load: int, *, start: dt.datetime = DAY) -> pa.Table:
    """Rows within a day, with ids from `first` on."""
    base = int(start.timestamp() * 1e6)
    times = base + np.arange(count, dtype=np.int64) * (86_400_000_000 // count)
    arrays = [
        pa.array(np.arange(first, first + count)),
        pa.array(np.full(count, load, np.int32)),
        pa.array(times, pa.int64()).cast(SCHEMA.field("ts").type),
    ]
    return pa.table(arrays, schema=SCHEMA)


def write_table(root: Path) -> None:
    """The chunk in files of its own, and a neighbour that no one replaces."""
    from deltalake import write_deltalake

    for number in range(BASE_FILES):
        day = DAY if number else DAY - dt.timedelta(days=1)
        write_deltalake(
            root.as_uri(),
            rows(number * 1_000, 1_000, OF_BASE, start=day),
            mode="append",
            configuration=None if number else {"delta.enableDeletionVectors": "true"},
        )


def append(folder: str, writer: int) -> dict[str, Any]:
    """In a separate process: appends until the deadline."""
    from deltalake import write_deltalake
    from deltalake.exceptions import DeltaError

    arena = Arena(Path(folder), 0)
    with suppress(DeltaError):  # it may lose against a replace that warms up
        write_deltalake(arena.spare.as_uri(), rows(0, 1, OF_APPENDERS), mode="append")
    arena.ready(f"appender-{writer}")
    deadline = arena.await_go()
    done, aborted = 0, []
    while time.time() < deadline:
        first = (writer + 1) * 10**9 + done * APPENDED
        try:
            batch = rows(first, APPENDED, OF_APPENDERS)
            write_deltalake(arena.table.as_uri(), batch, mode="append")
        except DeltaError as error:
            aborted.append(without_folder(str(error), arena.folder)[:200])
        done += 1
        time.sleep(PAUSE_S)
    return {"appends": done - len(aborted), "aborted": aborted}


# The engines: each is a child that replaces and compacts.

Replace = Callable[[Path, int], tuple[int, str]]
"""Replaces the chunk of a table by the rows of a load: (the version that it read, the outcome)."""


def _contest(
    arena: Arena, replace: Replace, compact: Callable[[Path], str], close: Callable[[], None]
) -> dict[str, Any]:
    for _ in range(2):
        replace(arena.spare, 0)
        compact(arena.spare)
    arena.ready("engine")
    deadline = arena.await_go()
    over = threading.Event()
    compactions: list[str] = []

    def compact_on() -> None:
        while not over.is_set():
            compactions.append(compact(arena.table))
            over.wait(0.2)

    compactor = threading.Thread(target=compact_on)
    compactor.start()
    replaces: list[tuple[int, str]] = []
    while time.time() < deadline:
        replaces.append(replace(arena.table, len(replaces)))
    over.set()
    compactor.join()
    close()
    return {"replaces": replaces, "compactions": compactions}


def with_tandem(folder: str) -> dict[str, Any]:
    arena = Arena(Path(folder), 0)
    engine = Engine(arena.table, time={"column": "ts", "granularity": "Day"})

    def replace(table: Path, load: int) -> tuple[int, str]:
        return engine.replace(_source(arena, load), "2013-03-02", table)

    return _contest(
        arena, replace, lambda table: engine.compact_chunk("2013-03-02", table), engine.close
    )


def with_deltalake(folder: str) -> dict[str, Any]:
    from deltalake import DeltaTable, write_deltalake
    from deltalake.exceptions import DeltaError

    arena = Arena(Path(folder), 0)

    def replace(table: Path, load: int) -> tuple[int, str]:
        target = DeltaTable(table.as_uri())
        read = target.version()
        batch = rows(load * SOURCE_ROWS, SOURCE_ROWS, load)
        try:
            write_deltalake(target, batch, mode="overwrite", predicate=WHERE)
        except DeltaError as error:
            return read, f"aborted: {error}"
        return read, "ok"

    def compact(table: Path) -> str:
        try:
            DeltaTable(table.as_uri()).optimize.compact()
        except DeltaError as error:
            return f"aborted: {error}"
        return "ok"

    return _contest(arena, replace, compact, lambda: None)


def with_spark(folder: str) -> dict[str, Any]:
    from delta.tables import DeltaTable
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    from benchmarks.warm import start_delta

    arena = Arena(Path(folder), 0)
    spark = start_delta()

    def replace(table: Path, load: int) -> tuple[int, str]:
        read = -1  # the commit says what it read
        try:
            frame = spark.read.parquet(str(_source(arena, load)))
            writer = frame.write.format("delta").mode("overwrite").option("replaceWhere", WHERE)
            writer.save(str(table))
        except (PySparkException, Py4JError) as error:
            return read, f"aborted: {error}"
        return read, "ok"

    def compact(table: Path) -> str:
        try:
            DeltaTable.forPath(spark, str(table)).optimize().executeCompaction()
        except (PySparkException, Py4JError) as error:
            return f"aborted: {error}"
        return "ok"

    return _contest(arena, replace, compact, spark.stop)


def _source(arena: Arena, load: int) -> Path:
    import pyarrow.parquet as pq

    path = arena.folder / f"load-{load}.parquet"
    if not path.exists():
        pq.write_table(rows(load * SOURCE_ROWS, SOURCE_ROWS, load), path)
    return path


ENGINES: dict[str, Callable[..., dict[str, Any]]] = {
    "tandem": with_tandem,
    "deltalake": with_deltalake,
    "spark_delta": with_spark,
}


def contest(engine: str, folder: Path, seconds: float) -> dict[str, Any]:
    """What happened, by the log. Raises: WrongResult if the table has rows that it must not have,
    or lacks rows of its last replace; ChildFailed."""
    arena = Arena(folder, 0)
    for table in (arena.table, arena.spare):
        write_table(table)
    answers = {who: folder / f"{who}.json" for who in ("engine", "appender-0", "appender-1")}
    children = {"engine": start_child(ENGINES[engine], answers["engine"], folder=str(folder))}
    for n in range(APPENDERS):
        who = f"appender-{n}"
        children[who] = start_child(append, answers[who], folder=str(folder), writer=n)
    until = time.time() + PATIENCE_S
    while not all(map(arena.is_ready, children)):
        if time.time() > until or any(child.poll() for child in children.values()):
            break  # the children say why
        time.sleep(0.05)
    arena.go(time.time() + seconds)
    found = {
        who: await_child(child, answers[who], seconds + PATIENCE_S)
        for who, child in children.items()
    }
    did = found.pop("engine")
    counted = _by_the_log(arena.table, did["replaces"])
    shutil.rmtree(folder)
    outcomes = [outcome for _, outcome in did["replaces"]]
    return {
        **counted,
        "replaces": len(outcomes),
        "committed": outcomes.count("ok"),
        "compactions": sum(each in ("ok", "superseded") for each in did["compactions"]),
        "compactions_aborted": sum(each.startswith("aborted") for each in did["compactions"]),
        "appends": sum(each["appends"] for each in found.values()),
        "appends_aborted": sum(len(each["aborted"]) for each in found.values()),
        "why_appends": sorted({why for each in found.values() for why in each["aborted"]})[:5],
        "why": sorted({without_folder(why, folder)[:160] for why in outcomes if why != "ok"})[:5],
    }


def _by_the_log(table: Path, replaces: list[tuple[int, str]]) -> dict[str, int]:
    """Rows that came between the start and the commit of replaces, and how many of them the table
    showed afterwards. Raises: WrongResult."""
    import pyarrow.parquet as pq

    ids_at: dict[int, Any] = {}
    overwrites: list[tuple[int, int | None]] = []
    for file in sorted((table / "_delta_log").glob("*.json")):
        version = int(file.stem)
        actions = [json.loads(line) for line in file.read_text().splitlines()]
        info = next(action["commitInfo"] for action in actions if "commitInfo" in action)
        mode = str((info.get("operationParameters") or {}).get("mode", "")).strip('"')
        adds = [action["add"]["path"] for action in actions if "add" in action]
        if mode == "Overwrite":
            overwrites.append((version, info.get("readVersion")))
        elif mode == "Append":
            parts = [pq.read_table(table / path, columns=["id", "load"]) for path in adds]
            ids_at[version] = {
                id_ for part in parts for id_ in part["id"].to_pylist()
                if part["load"][0].as_py() == OF_APPENDERS
            }  # fmt: skip
    done = [(read, load) for load, (read, outcome) in enumerate(replaces) if outcome == "ok"]
    if len(done) != len(overwrites):
        raise WrongResult(f"{len(done)} replaces, {len(overwrites)} overwrites in the log")
    late = kept = 0
    for (read, load), (version, by_commit) in zip(done, overwrites, strict=True):
        start = read if read >= 0 else by_commit
        if start is None:
            raise WrongResult(f"version {version} does not say what it read")
        shown = _shown(table, version)
        appended = {id_ for id_, of in shown if of == OF_APPENDERS}
        came = set().union(*(ids for at, ids in ids_at.items() if start < at < version))
        late += len(came)
        kept += len(came & appended)
        if appended - came:
            raise WrongResult(f"{len(appended - came)} old rows are left after version {version}")
        if sum(of == load for _, of in shown) != SOURCE_ROWS:
            raise WrongResult(f"the rows of load {load} are not all there")
        if len({id_ for id_, of in shown if of == OF_BASE}) != 1_000:
            raise WrongResult("the chunk beside it has changed")
    return {"late": late, "kept": kept}


def _shown(table: Path, version: int) -> list[tuple[int, int]]:
    from deltalake import DeltaTable

    found = pa.table(DeltaTable(table.as_uri(), version=version).scan())
    return list(zip(found["id"].to_pylist(), found["load"].to_pylist(), strict=True))
