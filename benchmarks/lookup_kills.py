"""Executors of an index server on Spark that are killed while clients ask."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness import WrongResult

if TYPE_CHECKING:
    from index.executor_driver import Driver

ASKERS = 4


def killed(times: int) -> dict[str, Any]:
    """In a separate process: a driver with two executors, of which one loses its worker or its JVM,
    so many times each. Half of the askers have no fallback.

    Returns: by what is killed, the seconds until all shards are narrowed again and until the
    executor is back; what the askers got.
    """
    from index import executor_driver
    from index.askers import Asker
    from index.spread_index import ROWS, until
    from tandem.index import open_index
    from tandem.index.server.client import ChainedIndex

    with tempfile.TemporaryDirectory() as folder:
        driver = executor_driver.Driver(Path(folder))
        try:
            until(driver.served, "shards are not served")
            chain = ChainedIndex(driver.index, lambda: open_index(driver.lake.location))
            stop = threading.Event()
            # Here no test has deleted a row.
            expected = executor_driver.WHERES | {"id >= 4": 5 * ROWS - 4}
            indexes = [driver.index, chain] * (ASKERS // 2)
            askers = [Asker(index, expected, stop) for index in indexes]
            for asker in askers:
                asker.start()
            found: dict[str, Any] = {"worker": [], "JVM": []}
            try:
                for _ in range(times):
                    for what, each in found.items():
                        processes = driver.executor_processes(what)
                        before = driver.ids
                        began = time.monotonic()
                        os.kill(processes[0], signal.SIGKILL)
                        until(partial(_changed, driver, before), "the dead one is counted on")
                        until(driver.served, "its shards are not served by others")
                        served = time.monotonic() - began
                        until(
                            lambda: len(driver.shown()) == executor_driver.EXECUTORS,
                            "it does not come back",
                        )
                        each.append({"served": served, "back": time.monotonic() - began})
                        until(driver.served, "shards are not served")
            finally:
                stop.set()
                for asker in askers:
                    asker.join()
        finally:
            driver.process.kill()
            driver.process.communicate()
    wrong = [text for asker in askers for text in asker.wrong]
    if any("expected" in text for text in wrong):
        raise WrongResult("; ".join(wrong)[:500])
    return {
        **found,
        "calls": sum(asker.answers for asker in askers),
        "failed": wrong,
    }


def _changed(driver: Driver, before: set[str]) -> bool:
    return driver.ids != before
