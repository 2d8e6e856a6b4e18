"""A hundred thousand splits of a server's answer, read by Spark: all rows, and neither the driver's
Python nor its JVM grows from read to read; where tasks ask for their own, it holds no split."""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.jobs import quick_lake
from tandem.delta.actions import AddFile
from tandem.delta.log.codec import encode_action
from tandem.index import open_index
from tandem.index.server import client as client_
from tandem.index.server.calls import AnswerFiles
from tandem.index.server.client import (
    ENDPOINT_VARIABLE,
    FOLDER_VARIABLE,
    ChainedIndex,
    Fallback,
    RemoteIndex,
)
from tandem.index.server.service import IndexService
from tandem.index.server.transport import Connection, FlightServer
from tandem.spark import read
from tandem.spec import LakeTable
from tandem.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILES, ROWS = 100_000, 10
LINKS = 25_000
"""Of one file: a file system allows few more."""
SCHEMA = pa.schema([("id", pa.int64())])
READS = 3
MIB = 1 << 20


@dataclass(frozen=True)
class Memory:
    python: int
    jvm: int

    @classmethod
    def of(cls, session: Any) -> Memory:
        """Bytes that are in use, after what is garbage is gone."""
        gc.collect()
        pa.default_memory_pool().release_unused()
        runtime = session._jvm.java.lang.Runtime.getRuntime()
        for _ in range(3):
            session._jvm.java.lang.System.gc()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return cls(
            pages * os.sysconf("SC_PAGESIZE"), int(runtime.totalMemory() - runtime.freeMemory())
        )

    def __str__(self) -> str:
        return f"{self.python // MIB} MiB of Python, {self.jvm // MIB} MiB of the JVM's heap"


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table of very many files, of a hundred contents."""
    lake = quick_lake.make(tmp_path_factory.mktemp("many"), 0, schema=SCHEMA)
    stats = {"numRecords": ROWS, "minValues": {"id": 0}, "maxValues": {"id": ROWS - 1},
             "nullCount": {"id": 0}}  # fmt: skip
    adds = []
    for at in range(FILES):
        name = f"part-{at:06}.parquet"
        if at % LINKS == 0:
            source = lake.path / name
            pq.write_table(pa.table({"id": range(ROWS)}), source)
        else:
            os.link(source, lake.path / name)
        adds.append(AddFile(name, {}, source.stat().st_size, 1, True, json.dumps(stats), {}))
    lake.log_raw(*(encode_action(add) for add in adds))
    return lake.location


@pytest.mark.timeout(3_600)
def test_a_hundred_thousand_splits_leave_the_drivers_memory_flat(
    delta_spark: SparkSession, location: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    service = IndexService({"t": lambda: open_index(location)}, AnswerFiles(tmp_path / "answers"))
    said = []
    with FlightServer(service, "127.0.0.1", 0) as server:
        connection = Connection(f"grpc://127.0.0.1:{server.port}", timeout_s=600)
        index = ChainedIndex(
            RemoteIndex(connection, "t", open_store(location)),
            lambda: open_index(location),
            fallback=Fallback.NEVER,
        )
        assert index.count() == FILES * ROWS
        used = [Memory.of(delta_spark)]
        for _ in range(READS):
            began = time.monotonic()
            frame = read(delta_spark, index, "id >= 0")
            planned_s = time.monotonic() - began
            (row,) = frame.selectExpr("count(*) AS rows", "sum(id) AS total").collect()
            assert (row.rows, row.total) == (FILES * ROWS, FILES * sum(range(ROWS)))
            whole_s = time.monotonic() - began
            held = Memory.of(delta_spark)
            del frame
            used.append(Memory.of(delta_spark))
            said.append(
                f"{planned_s:.1f} s to a DataFrame, {whole_s:.0f} s to its sum; with it {held}"
            )
    with capsys.disabled():
        sys.stdout.write(f"\n{FILES:,} splits; before {used[0]}\n")
        for text, after in zip(said, used[1:], strict=True):
            sys.stdout.write(f"  {text}; afterwards {after}\n")
    first, last = used[1], used[-1]
    # What the first read leaves are classes, compiled code and pools.
    assert last.python - first.python < 64 * MIB
    assert last.jvm - first.jvm < 64 * MIB


@pytest.mark.timeout(3_600)
def test_tasks_fetch_a_hundred_thousand_splits_and_the_driver_holds_none(
    delta_spark: SparkSession,
    location: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tasks whose server does not answer in time ask the index in their worker."""
    table = LakeTable.model_validate(
        {
            "apiVersion": "tandem.dev/v1alpha1",
            "kind": "LakeTable",
            "metadata": {"name": "t"},
            "spec": {"location": location, "index": {"server": "lake"}},
        }
    )
    service = IndexService({"t": lambda: open_index(location)}, AnswerFiles(tmp_path / "answers"))
    held, used = [], list[Memory]()
    with FlightServer(service, "127.0.0.1", 0) as server:
        monkeypatch.setenv(ENDPOINT_VARIABLE, f"grpc://127.0.0.1:{server.port}")
        monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path / "none"))
        # This process waits for a slow machine.
        monkeypatch.setattr(client_, "Connection", partial(Connection, timeout_s=600))
        for _ in range(READS):
            frame = read(delta_spark, table, "id >= 0", in_tasks=True)
            (row,) = frame.selectExpr("count(*) AS rows", "sum(id) AS total").collect()
            assert (row.rows, row.total) == (FILES * ROWS, FILES * sum(range(ROWS)))
            held.append(Memory.of(delta_spark))
            del frame
            used.append(Memory.of(delta_spark))
        # Of each read its plan, and most of its tasks.
        assert service._served["t"].questions > READS * 100
    with capsys.disabled():
        sys.stdout.write(f"\n{FILES:,} splits in tasks\n")
        for during, after in zip(held, used, strict=True):
            sys.stdout.write(f"  with a DataFrame {during}; afterwards {after}\n")
    # What the first read leaves are classes, compiled code and pools.
    for before, during in zip(used, held[1:], strict=False):
        assert during.python - before.python < 32 * MIB
        assert during.jvm - before.jvm < 32 * MIB
