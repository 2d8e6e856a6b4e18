"""Very many tables in one server process: memory stays below the limit, threads do not grow with
tables, and each table is answered. `TANDEM_EVERY_CASE` makes it a thousand."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from support.jobs import quick_lake
from support.some import few
from support.waiting import await_that
from tandem.delta.actions import AddFile
from tandem.delta.log.codec import encode_action
from tandem.index import Query
from tandem.index.server.client import RemoteIndex
from tandem.index.server.messages import AccessConfig, ServerConfig, TableConfig, written
from tandem.index.server.transport import Connection
from tandem.spark.application.manifest import SERVICE_BESIDE
from tandem.storage import open_store

TABLES = few(20, 1_000)
FILES = few(40, 400)
ROWS = 100
SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
MIB = 1 << 20
PATIENCE_S = 600.0


@dataclass
class Process:
    pid: int
    endpoint: str

    def status(self, name: str) -> int:
        text = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)
        assert found is not None
        return int(found[1])

    @property
    def threads(self) -> int:
        return self.status("Threads")

    @property
    def resident_mib(self) -> int:
        return self.status("VmRSS") >> 10

    def cache(self) -> dict[str, Any]:
        message, _ = self.connection().ask("ShowCache", b"{}")
        return message

    def held(self) -> dict[str, int]:
        """Bytes by table, of those that are held."""
        tables = self.cache()["tables"]
        return {each["table"]: each["bytes"] for each in tables if each["version"] is not None}

    def connection(self) -> Connection:
        return Connection(self.endpoint, timeout_s=PATIENCE_S)


@pytest.fixture(scope="module")
def lakes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Locations by name. Counts are by the log alone, so that no data file is needed."""
    folder = tmp_path_factory.mktemp("many")
    found = {}
    for number in range(TABLES):
        name = f"t{number:04}"
        lake = quick_lake.make(folder / name, 0, schema=SCHEMA)
        lake.log_raw(*(encode_action(file(number, at)) for at in range(FILES)))
        found[name] = lake.location
    return found


def file(number: int, at: int) -> AddFile:
    low = {"id": ROWS * at, "name": f"n{number}-{at:05}"}
    high = {"id": ROWS * (at + 1) - 1, "name": f"n{number}-{at:05}z"}
    stats = {"numRecords": ROWS, "minValues": low, "maxValues": high,
             "nullCount": {"id": 0, "name": 0}}  # fmt: skip
    return AddFile(f"part-{at:05}.parquet", {}, 1_000, 1, True, json.dumps(stats), {})


@contextmanager
def serving(
    lakes: dict[str, str], folder: Path, memory: int, *, pre_prime: bool = True
) -> Iterator[Process]:
    config = ServerConfig(
        tables={name: TableConfig(location=location) for name, location in lakes.items()},
        access=AccessConfig(mode="Plaintext", namespace="n"),
        memory=memory,
        disk=MIB,
        shard_size=MIB,
        pre_prime=pre_prime,
        poll_s=1.0,
    )
    path = folder / "config"
    path.write_text("".join(written(config)))
    command = [sys.executable, "-m", "index.many_tables", str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"},
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            yield Process(process.pid, process.stdout.readline().strip())
        finally:
            process.kill()


def ask_all(process: Process, lakes: dict[str, str]) -> list[float]:
    """Each table twice, eight at a time; the seconds of each question, sorted."""
    connection = process.connection()

    def ask(name: str) -> list[float]:
        index = RemoteIndex(connection, name, open_store(lakes[name]))
        took = []
        for where, rows in (("", ROWS * FILES), (f"id >= {ROWS}", ROWS * (FILES - 1))):
            began = time.monotonic()
            assert index.count(Query(where)) == rows
            took.append(time.monotonic() - began)
        return took

    with ThreadPoolExecutor(8) as pool:
        return sorted(each for both in pool.map(ask, lakes) for each in both)


def test_many_tables_are_held_and_answered(
    lakes: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few_lakes = dict(list(lakes.items())[:2])
    with serving(few_lakes, tmp_path, 4 << 30) as process:
        await_that(lambda: len(process.held()) == 2, process.held, PATIENCE_S)
        ask_all(process, few_lakes)
        await_that(lambda: process.threads > 0, lambda: None)
        base_mib, base_threads = process.resident_mib, process.threads
    with serving(lakes, tmp_path, 4 << 30) as process:
        began = time.monotonic()
        await_that(lambda: len(process.held()) == TABLES, process.held, PATIENCE_S)
        loaded_s = time.monotonic() - began
        took = ask_all(process, lakes)
        cache = process.cache()
        held = sum(each["bytes"] for each in cache["tables"])
        resident, threads = process.resident_mib, process.threads
        assert cache["evictions"] == 0
        # As many as for two tables, and pools that have filled up meanwhile.
        assert threads < base_threads + 64
        # What is not counted: about as much again, and what a table costs at least.
        assert resident - base_mib < 3 * held / MIB + TABLES / 4 + 64
    with capsys.disabled():
        sys.stdout.write(
            f"\n{TABLES:,} tables of {FILES} files: loaded in {loaded_s:.1f} s, "
            f"{held / MIB:.1f} MiB held, {resident} MiB resident ({base_mib} with two tables), "
            f"{threads} threads ({base_threads} with two tables); "
            f"p50 {1000 * took[len(took) // 2]:.1f} ms, "
            f"p99 {1000 * took[len(took) * 99 // 100]:.1f} ms with 8 askers\n"
        )


@pytest.mark.matrix
def test_Xe_beyond_the_limit_those_asked_for_least_recently_are_dropped(
    lakes: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = dict(list(lakes.items())[:1])
    with serving(first, tmp_path, 4 << 30) as process:
        await_that(lambda: bool(process.held()), process.held, PATIENCE_S)
        ask_all(process, first)
        (size,) = process.held().values()
    fit = TABLES // 4
    # Half of the memory is for what the log says.
    with serving(lakes, tmp_path, 2 * fit * size) as process:
        limit = process.cache()["limitBytes"]
        for _ in range(2):
            took = ask_all(process, lakes)
            assert sum(process.held().values()) <= limit
        cache, held = process.cache(), process.held()
        assert 0 < len(held) <= fit + 1
        assert cache["evictions"] >= TABLES
        # The last ones that were asked for: eight askers end in about the order of the names.
        assert min(held) >= f"t{TABLES - len(held) - 16:04}"
        resident, threads = process.resident_mib, process.threads
        # What a pod has beside its JVM: more would end it.
        assert resident < (2 * fit * size + SERVICE_BESIDE) / MIB
    with capsys.disabled():
        sys.stdout.write(
            f"\n{TABLES:,} tables, {fit} of which fit: {len(held)} held, "
            f"{cache['evictions']:,} evictions, {resident} MiB resident, {threads} threads; "
            f"p50 {1000 * took[len(took) // 2]:.1f} ms\n"
        )
