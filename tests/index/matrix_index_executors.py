"""The index server on real Spark executors (local-cluster): who holds what is theirs, and a worker,
a JVM and the driver that are killed cost time, never a row."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from index.askers import asked_by
from index.executor_driver import EXECUTORS, WHERE, WHERES, Driver
from index.spread_index import until
from tandem.errors import Unreachable
from tandem.index import Query, open_index
from tandem.index.server.client import ChainedIndex, RemoteIndex
from tandem.index.server.transport import Connection

_log = structlog.get_logger("test")

STOPPED_S = 60.0


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


@pytest.mark.parametrize("what", ["worker", "JVM"])
def test_X6_one_that_is_killed_costs_no_row_and_comes_back(driver: Driver, what: str) -> None:
    until(driver.served, "shards are not served")
    ids_before = driver.ids
    found = driver.workers if what == "worker" else driver.descendants("CoarseGrained")
    assert len(found) == EXECUTORS
    os.kill(found[0], signal.SIGKILL)
    began = time.monotonic()
    driver.index.count(Query(WHERE))
    until(lambda: driver.ids != ids_before, "the dead one is counted on")
    until(driver.served, "its shards are not served by others")
    served = time.monotonic() - began
    until(lambda: len(driver.shown()) == EXECUTORS, "it does not come back")
    _log.info("killed", what=what, served_s=served, back_s=time.monotonic() - began)
    # The other one has never stopped.
    assert len(ids_before & driver.ids) == 1
    assert driver.index.count(Query("key = 'k77'")) == 1


def replaced(driver: Driver, process: int, sign: signal.Signals) -> None:
    """Send a signal; returns once its executor is no longer counted on."""
    before = driver.ids
    os.kill(process, sign)
    until(lambda: driver.ids != before, f"it is counted on after {sign.name}")


@pytest.mark.timeout(1_800)
def test_X6_I51_all_calls_are_right_while_workers_and_jvms_die_and_stop(driver: Driver) -> None:
    """In the middle of the questions of four, through a chain and without one."""
    until(driver.served, "shards are not served")
    chain = ChainedIndex(driver.index, lambda: open_index(driver.lake.location))
    with asked_by([driver.index, driver.index, chain, chain], WHERES):
        for what in ("worker", "JVM"):
            replaced(driver, driver.executor_processes(what)[0], signal.SIGKILL)
            until(lambda: len(driver.shown()) == EXECUTORS, "it does not come back")
        until(driver.served, "its shards are not served")

        stopped, began = driver.executor_processes("worker")[0], time.monotonic()
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
    whole = open_index(driver.lake.location, row_groups=False)
    assert driver.index.count() == whole.count()
    until(
        lambda: set().union(*(shards for _, shards in driver.shown().values())) == {"0.1"},
        "the new shard is not primed, or old ones are held",
    )
    assert driver.index.count(Query("id < 2000")) == whole.count(Query("id < 2000"))


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
