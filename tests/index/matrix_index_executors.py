"""The index server on real Spark executors (local-cluster): who holds what is theirs, and a worker,
a JVM and the driver that are killed cost time, never a row."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from index.askers import asked_by
from index.spread_index import ROWS, Lake, until
from tandem.errors import Unreachable
from tandem.index import Query, open_index
from tandem.index.server.client import ChainedIndex, RemoteIndex
from tandem.index.server.transport import Connection
from tandem.storage import open_store

_log = structlog.get_logger("test")

EXECUTORS = 2
WHERE = "id < 1234"
WHERES = {"id >= 4": 5 * ROWS - 5, "id = 7": 1, "key = 'k77'": 1, "id < 0": 0}
"""Conditions and their rows, whatever the tests here delete."""
STOPPED_S = 60.0


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


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    found = Driver(tmp_path_factory.mktemp("driver"))
    yield found
    found.process.kill()
    found.process.communicate()


def test_X1_X2_X21_shards_stay_with_their_executors(driver: Driver) -> None:
    until(driver.served, "shards are not served")
    shown = driver.shown()
    assert {slot: len(shards) for slot, (_, shards) in shown.items()} == {0: 2, 1: 2}
    second = RemoteIndex(driver.connection, "lake", driver.store)
    assert second.count(Query(WHERE)) == 1234
    assert driver.shown() == shown


def test_X20_numbers_equal_a_scan(driver: Driver) -> None:
    whole = open_index(driver.lake.location, row_groups=False)
    for where in ("id = 7", WHERE, "id >= 900 AND id < 1100", "key = 'k77'", "id < 0"):
        assert driver.index.count(Query(where)) == whole.count(Query(where))
    driver.lake.lake.run(driver.lake.lake.delete("id = 3"))
    assert driver.index.count(Query(WHERE)) == 1233
    driver.lake.lake.run(driver.lake.lake.delete("id = 1500"))
    assert driver.index.count(Query("id < 2000")) == 1998


def ids(driver: Driver) -> set[str]:
    return {id_ for id_, _ in driver.shown().values()}


@pytest.mark.parametrize("what", ["worker", "JVM"])
def test_X6_one_that_is_killed_costs_no_row_and_comes_back(driver: Driver, what: str) -> None:
    until(driver.served, "shards are not served")
    ids_before = ids(driver)
    found = driver.workers if what == "worker" else driver.descendants("CoarseGrained")
    assert len(found) == EXECUTORS
    os.kill(found[0], signal.SIGKILL)
    began = time.monotonic()
    driver.index.count(Query(WHERE))
    until(lambda: ids(driver) != ids_before, "the dead one is counted on")
    until(driver.served, "its shards are not served by others")
    served = time.monotonic() - began
    until(lambda: len(driver.shown()) == EXECUTORS, "it does not come back")
    _log.info("killed", what=what, served_s=served, back_s=time.monotonic() - began)
    # The other one has never stopped.
    assert len(ids_before & ids(driver)) == 1
    assert driver.index.count(Query("key = 'k77'")) == 1


def processes(driver: Driver, what: str) -> list[int]:
    def find() -> list[int]:
        return driver.workers if what == "worker" else driver.descendants("CoarseGrained")

    until(lambda: len(find()) == EXECUTORS, f"there are {find()}")
    return find()


def replaced(driver: Driver, process: int, sign: signal.Signals) -> None:
    """Send a signal; returns once its executor is no longer counted on."""
    before = ids(driver)
    os.kill(process, sign)
    until(lambda: ids(driver) != before, f"it is counted on after {sign.name}")


@pytest.mark.timeout(1_800)
def test_X6_I51_all_calls_are_right_while_workers_and_jvms_die_and_stop(driver: Driver) -> None:
    """In the middle of the questions of four, through a chain and without one."""
    until(driver.served, "shards are not served")
    chain = ChainedIndex(driver.index, lambda: open_index(driver.lake.location))
    with asked_by([driver.index, driver.index, chain, chain], WHERES):
        for what in ("worker", "JVM"):
            replaced(driver, processes(driver, what)[0], signal.SIGKILL)
            until(lambda: len(driver.shown()) == EXECUTORS, "it does not come back")
        until(driver.served, "its shards are not served")

        stopped, began = processes(driver, "worker")[0], time.monotonic()
        replaced(driver, stopped, signal.SIGSTOP)
        until(driver.served, "its shards are not served by others")
        until(lambda: time.monotonic() - began > STOPPED_S, "time stands still")
        os.kill(stopped, signal.SIGCONT)
        until(lambda: len(driver.shown()) == EXECUTORS, "it does not join again")
    until(driver.served, "shards are not served")


@pytest.mark.timeout(1_800)
def test_X13_I51_a_driver_that_is_stopped_for_a_minute_costs_no_row(driver: Driver) -> None:
    until(driver.served, "shards are not served")
    connection = Connection(driver.connection.endpoint)
    remote = RemoteIndex(connection, "lake", driver.store)
    chains = [ChainedIndex(remote, lambda: open_index(driver.lake.location)) for _ in range(4)]
    with asked_by(chains, WHERES):
        began = time.monotonic()
        driver.process.send_signal(signal.SIGSTOP)
        with pytest.raises(Unreachable, match="does not answer"):
            remote.count()
        until(lambda: time.monotonic() - began > STOPPED_S, "time stands still")
        driver.process.send_signal(signal.SIGCONT)
        until(lambda: len(driver.shown()) == EXECUTORS, "executors do not join again")
    until(driver.served, "shards are not served")
    assert remote.count(Query("id < 2000")) == 1998


def test_X8_I50_a_compaction_drops_old_shards_and_primes_the_new_one(driver: Driver) -> None:
    until(driver.served, "shards are not served")
    driver.lake.lake.run(driver.lake.lake.compaction())
    assert driver.index.count() == 5 * ROWS - 2
    until(
        lambda: set().union(*(shards for _, shards in driver.shown().values())) == {"0.1"},
        "the new shard is not primed, or old ones are held",
    )
    assert driver.index.count(Query("id < 2000")) == 1998


def test_X13_without_the_driver_this_process_answers(driver: Driver) -> None:
    chain = ChainedIndex(driver.index, lambda: open_index(driver.lake.location))
    assert chain.count(Query("id < 2000")) == 1998
    jvms = driver.descendants("CoarseGrained")
    driver.process.kill()
    driver.process.wait()
    assert chain.count(Query("id < 2000")) == 1998
    with pytest.raises(Unreachable):
        driver.index.count()
    # Nothing of it goes on.
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in jvms), "executors outlive it")
