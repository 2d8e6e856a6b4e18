"""Does the jobs of a pool: each in a thread, all over one Spark context.

A job has one of the pool's slots, which is a fair pool of Spark's scheduler: with several jobs at
once each gets its share of the cores. All jobs have the settings, the credentials and the storage
options that the process was started with. Does not decide which jobs run: the ledger of the pool
does.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tandem.errors import TandemError
from tandem.jobs.formats import Format
from tandem.jobs.pool import PoolConfig, PooledEnd, PooledJob
from tandem.spark.jobs.apps import run
from tandem.spark.launch.local_spark import HARMFUL
from tandem.spark.runtime import session
from tandem.spark.runtime.control import Control, open_job, recorded, say

if TYPE_CHECKING:
    from pyspark import SparkContext

_MESSAGE: Final = 1_000
_SETTINGS: Final = {
    "spark.scheduler.mode": "FAIR",
    # It lives long: what Spark keeps of jobs that have ended must not grow.
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "1000",
    "spark.sql.ui.retainedExecutions": "20",
}


@dataclass(frozen=True)
class PooledControl(Control):
    """The control of a job that can be withdrawn: it serves no more rounds then, and answers no
    more."""

    withdrawn: threading.Event = field(default_factory=threading.Event)

    def is_done(self) -> bool:
        return self.withdrawn.is_set() or super().is_done()

    def _put_once(self, path: str, content: Format) -> bool:
        return False if self.withdrawn.is_set() else super()._put_once(path, content)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a job ended. `taints`: the process takes no more jobs."""

    end: PooledEnd
    taints: bool = False


class PooledJobs:
    """Thread-safe. `open` first."""

    def __init__(self, config: PoolConfig) -> None:
        self._config = config
        self._context: SparkContext | None = None
        self._withdrawn: dict[str, threading.Event] = {}
        self._lock = threading.Lock()

    def open(self) -> None:
        """Start Spark."""
        from pyspark import SparkConf, SparkContext

        with tempfile.TemporaryDirectory(prefix="tandem-pool-") as folder:
            allocation = Path(folder) / "slots.xml"
            allocation.write_text(_allocation(self._config.slots))
            conf = SparkConf().setAppName(self._config.name)
            conf.setAll([*_SETTINGS.items(), ("spark.scheduler.allocation.file", str(allocation))])
            self._context = SparkContext.getOrCreate(conf)
        # The first one takes seconds.
        session.session(self._config.name)

    def close(self) -> None:
        if self._context is not None:
            self._context.stop()

    def begin(
        self, name: str, job: PooledJob, slot: int, on_end: Callable[[Outcome], None]
    ) -> None:
        """Do a job in a thread of its own, which calls `on_end` at last."""
        from pyspark import InheritableThread

        withdrawn = threading.Event()
        with self._lock:
            self._withdrawn[name] = withdrawn

        def work() -> None:
            try:
                outcome = self._do(name, job, slot, withdrawn)
            except Exception as error:  # noqa: BLE001 - the boundary of a job: reported, not lost
                # Outside of the job itself: Spark does not answer, say.
                outcome = Outcome(_failed(error), taints=not isinstance(error, TandemError))
            with self._lock:
                del self._withdrawn[name]
            on_end(outcome)

        thread = InheritableThread(target=work, name=name)
        thread.daemon = True
        thread.start()

    def withdraw(self, name: str) -> None:
        """End a job; it reports its end as any other."""
        with self._lock:
            withdrawn = self._withdrawn.get(name)
        if withdrawn is not None and self._context is not None:
            withdrawn.set()
            session.cancel(self._context, name)

    def _do(self, name: str, job: PooledJob, slot: int, withdrawn: threading.Event) -> Outcome:
        context = self._context
        assert context is not None
        context.setJobGroup(name, name, interruptOnCancel=True)
        context.setLocalProperty("spark.scheduler.pool", _slot(slot))
        opened = open_job(
            job.location, job.spec, dict(self._config.storage_options), self._config.allowed
        )
        control = PooledControl(opened.spec, opened.store, withdrawn)
        say(control, f"{control.spec.job.kind} of version {control.spec.table.version} begins")
        failure = recorded(lambda control: run(control, context), control)
        if failure is None:
            say(control, "answered")
            return Outcome(PooledEnd(code=0))
        say(control, str(failure))
        taints = failure.reason in HARMFUL and not withdrawn.is_set()
        # Its text, which may quote values of rows, is in the table's folder.
        return Outcome(PooledEnd(code=1, message=f"failed: {failure.reason.value}"), taints)


def _failed(error: Exception) -> PooledEnd:
    sys.stderr.write(f"tandem: {error}\n")
    text = " ".join(str(error).split()) or type(error).__name__
    return PooledEnd(code=1, message=text[:_MESSAGE])


def _slot(number: int) -> str:
    return f"slot-{number}"


def _allocation(slots: int) -> str:
    """Spark's file of fair pools: one for each slot, with a core that it gets first."""
    pools = "".join(
        f'<pool name="{_slot(number)}"><schedulingMode>FIFO</schedulingMode><weight>1</weight>'
        "<minShare>1</minShare></pool>"
        for number in range(slots)
    )
    return f'<?xml version="1.0"?><allocations>{pools}</allocations>'
