"""Many writers of one log, and a foreign writer of its base table. Each function runs in a separate
process, and starts more."""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import WrongResult, await_child, start_child, timed
from benchmarks.logtable import KEY, LogTable, opened, rows

PROCESSES: Final = 4
WRITERS: Final = 4
"""Of a process."""
BATCH: Final = 20
APPENDS: Final = 100_000
"""Of a writer, at most."""
READY_S: Final = 4.0
"""Until all processes have imported everything."""


def write(
    folder: str,
    process: int,
    writers: int,
    start: float,
    seconds: float,
    every_s: float,
    request_ms: int,
) -> list[list[float]]:
    """For each append of some writers: when it ended, by the clock, how long it took, and its first
    key. A writer begins one each `every_s` seconds; after one that took longer, at once."""
    from tandem.mergelog import LogWriter

    found: list[list[float]] = []

    def work(number: int) -> None:
        log = opened(Path(folder), request_ms)
        with LogWriter(log, f"writer-{number}") as writer:
            batch = 0
            due = start + (number % 16) / 16 * every_s
            while due < start + seconds:
                time.sleep(max(0.0, due - time.time()))
                began = time.time()
                first = (number * APPENDS + batch) * BATCH
                writer.append(rows(range(first, first + BATCH), batch), batch=batch)
                ended = time.time()
                found.append([ended, ended - began, first])
                batch += 1
                due = max(due + every_s, ended)

    threads = [
        threading.Thread(target=work, args=(process * writers + number,))
        for number in range(writers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def crowd_of_writers(
    folder: str, seconds: float, every_s: float, request_ms: int
) -> dict[str, Any]:
    """16 writers, with a LogCompaction in their midst. Raises: WrongResult, ChildFailed."""
    table = LogTable.made(Path(folder), 10)
    before = table.log.snapshot().version
    start = time.time() + READY_S
    seconds = max(seconds, 2 * every_s)
    with _writers(folder, PROCESSES, start, seconds, every_s, request_ms) as crowd:
        time.sleep(max(0.0, start + seconds / 2 - time.time()))
        slow = LogTable(Path(folder), request_ms)
        took, _ = timed(slow.serve, "AllBlocks")
        found = crowd.results()
    after = table.log.snapshot().version
    latencies = sorted(latency for _, latency, _ in found)
    ends = max(end for end, _, _ in found) - start
    keys = {int(first) + number for _, _, first in found for number in range(BATCH)}
    if sorted(table.read()[KEY].to_pylist()) != sorted(keys.union(range(10))):
        raise WrongResult(f"the view has other keys than those of {len(found)} appends")
    return {
        "appends": len(found),
        "instants_per_s": (after - before) / ends,
        "p50_s": statistics.median(latencies),
        "p99_s": latencies[min(int(len(latencies) * 0.99), len(latencies) - 1)],
        "compaction_s": took,
    }


def foreign_appends(folder: str, seconds: float, request_ms: int) -> dict[str, Any]:
    """Seconds of appends of `deltalake` to the base table, alone and beside four writers of the
    log, and how many failed. Raises: ChildFailed.

    What an append takes grows with the commits that it has to read: both begin with a table of
    the same versions, and the same numbers of appends are compared.
    """
    from deltalake import write_deltalake
    from deltalake.exceptions import DeltaError

    failed = 0

    def append(to: Path, until: float) -> list[float]:
        nonlocal failed
        taken = []
        while time.time() < until:
            try:
                taken.append(timed(write_deltalake, to, rows(range(20), 0), mode="append")[0])
            except DeltaError:
                failed += 1
        return taken

    warm, quiet, crowded = (Path(folder) / name for name in ("warm", "alone", "beside"))
    for table in (warm, quiet, crowded):
        LogTable.made(table, 10)
    append(warm, time.time() + seconds / 4)
    alone = append(quiet, time.time() + seconds)
    start = time.time() + READY_S
    with _writers(str(crowded), 1, start, seconds, 0.0, request_ms) as crowd:
        time.sleep(max(0.0, start - time.time()))
        beside = append(crowded, start + seconds)
        crowd.results()
    both = min(len(alone), len(beside))
    return {"alone": alone[:both], "beside": beside[:both], "failed": failed}


class _writers:  # noqa: N801 - reads as a statement
    """Processes that write; ended with the block."""

    def __init__(
        self,
        folder: str,
        processes: int,
        start: float,
        seconds: float,
        every_s: float,
        request_ms: int,
    ) -> None:
        self._stack = ExitStack()
        answers = Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        self._children = []
        for number in range(processes):
            answer = answers / f"{number}.json"
            child = start_child(
                write,
                answer,
                folder=folder,
                process=number,
                writers=WRITERS,
                start=start,
                seconds=seconds,
                every_s=every_s,
                request_ms=request_ms,
            )
            self._stack.callback(child.kill)
            self._children.append((child, answer))

    def results(self) -> list[list[float]]:
        """Of all appends. Raises: ChildFailed."""
        return [
            each for child, answer in self._children for each in await_child(child, answer, 900)
        ]

    def __enter__(self) -> _writers:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
