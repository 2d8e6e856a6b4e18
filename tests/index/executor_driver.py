"""A driver of an index server with executors on Spark (local-cluster), in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from index.spread_index import ROWS, Lake, until
from tandem.index import Query
from tandem.index.server.client import RemoteIndex
from tandem.index.server.transport import Connection
from tandem.storage import open_store

EXECUTORS = 2
WHERE = "id < 1234"
WHERES = {"id >= 4": 5 * ROWS - 5, "id = 7": 1, "key = 'k77'": 1, "id < 0": 0}
"""Conditions and their rows, whatever the tests here delete."""


class Driver:
    """A driver in a process of its own, and the table that it serves."""

    def __init__(self, folder: Path) -> None:
        self.lake = Lake(folder, [2, 1, 1, 1])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "index.index_driver", self.lake.location, str(EXECUTORS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        assert self.process.stdout is not None
        line = next(line for line in self.process.stdout if line.startswith("PORT"))
        self.connection = Connection(f"grpc://127.0.0.1:{line.split()[1]}", timeout_s=60)
        self.store = open_store(self.lake.location)
        self.index = RemoteIndex(self.connection, "lake", self.store)
        self.wait()

    def shown(self) -> dict[int, tuple[str, set[str]]]:
        """The id and the shards of the executor of each slot."""
        message, _ = self.connection.ask("ShowCache", b"{}")
        return {
            each["slot"]: (each["id"], {shard["shard"] for shard in each["shards"]})
            for each in message["executors"]
        }

    def wait(self) -> None:
        until(lambda: len(self.shown()) == EXECUTORS, "executors do not join")

    def descendants(self, text: str) -> list[int]:
        """Processes below the driver whose command line has a text."""
        parents, commands = {}, {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                parents[int(path.name)] = int(
                    (path / "stat").read_text().rsplit(")", 1)[1].split()[1]
                )
                commands[int(path.name)] = (path / "cmdline").read_text(errors="replace")
            except (OSError, IndexError):  # it has just ended
                continue
        mine = {self.process.pid}
        for _ in range(8):
            mine |= {pid for pid, parent in parents.items() if parent in mine}
        return sorted(pid for pid in mine if text in commands.get(pid, ""))

    @property
    def workers(self) -> list[int]:
        """The Python processes of tasks, of which each has its daemon as parent."""
        daemons = self.descendants("pyspark.daemon")
        return [
            pid
            for pid in daemons
            if int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1]) in daemons
        ]

    def right(self) -> None:
        assert self.index.count(Query(WHERE)) == 1234
        assert self.index.count(Query("key = 'k77'")) == 1

    def served(self) -> bool:
        """Whether all shards are narrowed."""
        return len(self.index.splits(Query("id = 7"))) == 1

    @property
    def ids(self) -> set[str]:
        """Of the executors that are counted on."""
        return {id_ for id_, _ in self.shown().values()}

    def executor_processes(self, what: str) -> list[int]:
        """The process of each executor: its `worker`, or its `JVM`."""

        def find() -> list[int]:
            return self.workers if what == "worker" else self.descendants("CoarseGrained")

        until(lambda: len(find()) == EXECUTORS, f"there are {find()}")
        return find()
