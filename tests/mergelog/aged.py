"""A merge-on-read table on a disk that grows old by a clock of the test."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, cast

from mergelog.orders import Orders, Rows, rows
from support.jobs.quick_jobs import QuickJobs
from tandem import mergelog
from tandem.delta.log.delta_log import DeltaLog
from tandem.jobs.runner import JobRunner
from tandem.mergelog.log_table import state_of
from tandem.mergelog.versions import in_order
from tandem.operations.clean import CleaningOptions, CleaningResult
from tandem.operations.clean_facts import CleaningDependencies
from tandem.operations.clean_log import clean_with_log
from tandem.operations.model import Table
from tandem.operations.ports import Ports
from tandem.operations.session.job_control import FileJobs
from tandem.planning.cleaning import DAY_MS, CleaningRules
from tandem.storage.local import LocalStore, LocalWriter

KEEP = CleaningRules(7 * DAY_MS)


@dataclass
class TestClock:
    """Begins now, and each look takes a millisecond."""

    __test__ = False
    now: int = field(default_factory=lambda: time.time_ns() // 1_000_000)

    def now_ms(self) -> int:
        self.now += 1
        return self.now

    def sleep(self, ms: int, _wake: threading.Event) -> None:
        self.now += ms

    def pass_days(self, days: float) -> None:
        self.now += int(days * DAY_MS)


class ClockedStore(LocalStore):
    """Files have the times of a clock. `before_put` is called once, before the next commit."""

    def __init__(self, folder: Path, clock: TestClock) -> None:
        super().__init__(folder.as_uri())
        self.folder, self.clock = folder, clock
        self.before_put: Callable[[], object] | None = None

    def stamp(self, path: str) -> None:
        moment = self.clock.now_ms() * 1_000_000
        os.utime(self.folder / path, ns=(moment, moment))

    def put(self, path: str, data: bytes) -> None:
        super().put(path, data)
        self.stamp(path)

    def put_if_absent(self, path: str, data: bytes) -> None:
        meanwhile, self.before_put = self.before_put, None
        if meanwhile is not None:
            meanwhile()
        super().put_if_absent(path, data)
        self.stamp(path)

    def open_output(self, path: str) -> BinaryIO:
        return cast(BinaryIO, _StampedWriter(self, path))


class _StampedWriter(LocalWriter):
    def __init__(self, store: ClockedStore, path: str) -> None:
        super().__init__(store, path)
        self._clocked, self._name = store, path

    def _publish(self) -> None:
        super()._publish()
        self._clocked.stamp(self._name)


class AgedOrders(Orders):
    """`Orders` whose files, writers, operations and cleanings have one clock."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.clock = TestClock()
        self.files = ClockedStore(folder, self.clock)
        self.store = self.files
        self.log = mergelog.MergeLog(DeltaLog(self.files))

    def ports(self, jobs: JobRunner | None = None) -> Ports:
        return Ports(jobs=FileJobs(jobs or QuickJobs()), clock=self.clock)

    @property
    def table(self) -> Table:
        return Table(self.store, DeltaLog(self.store), "LakeTable/orders")

    def writer(self, name: str) -> mergelog.LogWriter:
        return mergelog.LogWriter(self.log, name, now_ms=self.clock.now_ms, pause=lambda _: None)

    def upsert(self, name: str, ids: range, value: str, at: int, *, batch: int = 0) -> None:
        with self.writer(name) as writer:
            writer.append(rows(ids, value, at), batch=batch)

    def foreign(self, action: Callable[[str], Any]) -> None:
        """Another engine's statement, on the location; its files get the time of the clock."""
        before = {meta.path for meta in self.store.list("")}
        action(self.location)
        for meta in list(self.store.list("")):
            if meta.path not in before:
                self.files.stamp(meta.path)

    def clean(self, days: float = 0, rules: CleaningRules = KEEP, **options: Any) -> CleaningResult:
        """A cleaning of both tables, so many days later, which meets no problem."""
        found = self.clean_round(days, rules, **options)
        assert not found.problem, found.problem
        return found

    def clean_round(
        self, days: float = 0, rules: CleaningRules = KEEP, **options: Any
    ) -> CleaningResult:
        self.clock.pass_days(days)
        dependencies = CleaningDependencies(clock=self.clock)
        return clean_with_log(self.table, rules, dependencies, CleaningOptions(**options))

    def view_at(self, version: int) -> Rows:
        found = mergelog.MergedView.open(self.log, version).scan().read_all()
        columns = [found[name].to_pylist() for name in ("id", "at", "value")]
        return sorted(zip(*columns, strict=True))

    def live(self) -> list[str]:
        """The blocks of the newest version, relative to the table."""
        blocks = in_order(state_of(self.log.snapshot()).live.values())
        return [f"_tandem/log/{block.path}" for block in blocks]

    def there(self) -> set[str]:
        return {meta.path for meta in self.store.list("")}


def removed(result: CleaningResult) -> set[str]:
    return {each.file.path for each in result.garbage}
