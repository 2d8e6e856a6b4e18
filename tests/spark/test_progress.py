"""Progress moves while a job runs, per input file, and a finished job's is whole."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from support.jobs import job_files as jobs
from support.lake.memory_store import MemoryStore
from tandem.errors import StorageError
from tandem.jobs.formats import JobBin, RewriteJob
from tandem.jobs.results import JobProgress
from tandem.spark.jobs import rewrite
from tandem.spark.runtime import control
from tandem.spark.runtime.control import Control, Counter, HeldCounters, StoredCounters, reported


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "EVERY_SECONDS", 0.001)


@pytest.fixture
def job(tmp_path: Path) -> Control:
    """Six files in two bins."""
    for start in range(0, 600, 100):
        data = pa.table({"id": pa.array(range(start, start + 100), pa.int64())})
        write_deltalake(str(tmp_path), data, mode="append")
    store, snapshot = jobs.snapshot_of(tmp_path)
    bins = (JobBin(inputs=(0, 1, 2, 3)), JobBin(inputs=(4, 5), run=1))
    body = RewriteJob(inputs=jobs.input_files(store, snapshot), bins=bins, target_file_size=1 << 30)
    return jobs.control(store, snapshot, body)


def shown(job: Control) -> JobProgress:
    return JobProgress.model_validate_json(job.store.get(job.path("progress.json")))


def until(test: Callable[[], bool]) -> None:
    pause, deadline = threading.Event(), time.monotonic() + 20
    while not test():
        assert time.monotonic() < deadline
        pause.wait(0.001)


class Context:
    """A SparkContext's part in a rewrite, without Spark: `between` is called after each bin."""

    def __init__(self, between: Callable[[], None]) -> None:
        self.between = between

    def parallelize(self, items: list[int], _: int) -> Context:
        self.items = items
        return self

    def map(self, task: Callable[[int], Any]) -> Context:
        self.task = task
        return self

    def collect(self) -> list[Any]:
        found = []
        for item in self.items:
            found.append(self.task(item))
            self.between()
        return found


def test_a_rewrite_shows_every_file_before_it_ends(job: Control) -> None:
    seen: list[JobProgress] = []

    def between() -> None:
        at_least = [4, 6][len(seen)]
        until(lambda: shown(job).files_done == at_least)
        seen.append(shown(job))

    rewrite.run(job, Context(between))  # type: ignore[arg-type]
    assert [p.files_done for p in seen] == [4, 6]
    assert all(p.files_total == 6 for p in seen)
    assert 0 < seen[0].bytes_done < seen[0].bytes_total
    assert job.counters(0).counts() == {0: 4, 1: 2}
    last = shown(job)
    assert (last.files_done, last.bytes_done) == (last.files_total, last.bytes_total)


def test_a_bin_counts_its_files_one_by_one() -> None:
    class Noting(MemoryStore):
        def put(self, path: str, data: bytes) -> None:
            found.append((path, len(data)))

    found: list[tuple[str, int]] = []
    counter = Counter(StoredCounters(Noting(), "c"), 3)
    for _ in range(3):
        threading.Event().wait(0.002)
        counter.add()
    assert found == [("c/3", 1), ("c/3", 2), ("c/3", 3)]


def test_the_last_files_of_a_quick_bin_are_shown_when_it_ends(
    job: Control, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "EVERY_SECONDS", 3600.0)
    shown_by_each: list[dict[int, int]] = []

    def between() -> None:
        shown_by_each.append(dict(job.counters(0).counts()))

    rewrite.run(job, Context(between))  # type: ignore[arg-type]
    assert shown_by_each == [{0: 4}, {0: 4, 1: 2}]


def test_counts_in_memory_are_those_of_the_tasks() -> None:
    counters = HeldCounters()
    for number, files in ((0, 4), (1, 2)):
        counter = Counter(counters, number)
        for _ in range(files):
            counter.add()
        counter.show()
    assert counters.counts() == {0: 4, 1: 2}


def test_a_failing_counter_fails_no_job(job: Control) -> None:
    class Broken(MemoryStore):
        def put(self, path: str, data: bytes) -> None:
            raise StorageError("no", resource=path, found=len(data))

    counter = Counter(StoredCounters(Broken(), "c"), 0)
    counter.add()
    counter.show()
    with reported(job, "Rewriting", (1, 10), lambda _: (0, 0)):
        job.counters(0).show(0, 1)
    assert shown(job).files_done == 1


def test_a_failed_job_does_not_claim_to_be_complete(job: Control) -> None:
    with pytest.raises(ValueError, match="boom"), reported(job, "x", (5, 50), lambda _: (0, 0)):
        raise ValueError("boom")
    assert shown(job).files_done == 0
