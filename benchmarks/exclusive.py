"""`lockMode: Exclusive` beside rows that come late, and `Concurrent` beside the same rows: how
often it yields, and how long it takes.

Time is simulated: the engine, its log and its locks are real, the clock and the store are those of
the simulator, and a job takes as long as the benchmark says. So the figures hold on any machine,
and say nothing about one.
"""

from __future__ import annotations

import random
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.compute as pc

from benchmarks.harness import Report, Table, WrongResult, progress

PERIODS_S = (5, 30, 300)
"""Time from one late row to the next one."""
JOBS_S = (10, 60, 240)
"""How long a job takes."""
RUNS = {"toy": 1, "small": 4, "full": 25}
"""The first late row comes at a random time of its period in each."""
POLL_MS = 1_000
LOADS = 6
MODES = ("Exclusive", "Concurrent")
MOST_STEPS = 100_000


@dataclass
class Beside:
    """One run: a compaction, and another writer that appends every so many milliseconds."""

    mode: str
    job_ms: int
    period_ms: int
    seed: int

    def __post_init__(self) -> None:
        from simulator import foreign
        from simulator.world import World

        self.world = World(self.seed)
        for _ in range(LOADS):
            foreign.append(self.world)
        self.begun = self.world.clock.now
        phase = random.Random(self.seed).randrange(self.period_ms)
        self.next_row = self.begun + phase
        self.ends: dict[int, int] = {}

    def run(self) -> dict[str, Any]:
        """Yields, attempts, seconds to success, and late rows' files that it left alone.

        Raises: WrongResult unless it commits, and all rows are there once.
        """
        from simulator import foreign
        from simulator.actor import operation
        from tandem.operations.execute import ExecutionOptions, open_session
        from tandem.operations.model import Table as Opened
        from tandem.spec.status import Phase

        world = self.world
        table = Opened(world.store, world.log, "LakeTable/simulated")
        resource = operation("TableCompaction", "bench", {"type": "Major", "lockMode": self.mode})
        options = ExecutionOptions(poll_ms=POLL_MS, lock_wait_s=0)
        session = open_session(resource, table, world.ports(), options)
        for _ in range(MOST_STEPS):
            self._until(world.clock.now + session.wait_ms())
            if not session.advance(sleep=False):
                break
        ending, state = session.ending, session.state
        if ending is None or ending.phase is not Phase.SUCCEEDED or ending.result is None:
            raise WrongResult(f"{self}: {ending}")
        live = world.log.snapshot()
        shown, different = pc.sum(live.num_records).as_py(), len(foreign.live_rows(world))
        if {shown, different} != {world.next_rid}:
            raise WrongResult(f"{self}: {shown} rows, {different} of {world.next_rid}")
        return {
            "yields": state.yields.count,
            "attempts": ending.attempt,
            "seconds": (world.clock.now - self.begun) / 1000,
            "exclusive": state.exclusive,
            "left": live.num_files - (ending.result.files_added or 0),
        }

    def _until(self, end: int) -> None:
        """Time passes: rows come late, and jobs end."""
        from simulator import foreign

        clock, jobs = self.world.clock, self.world.jobs
        for driver in jobs.running():
            self.ends.setdefault(id(driver), clock.now + self.job_ms)
        while True:
            due = {id(d): (self.ends[id(d)], d) for d in jobs.running()}
            next_end = min((at for at, _ in due.values()), default=end + 1)
            moment = min(self.next_row, next_end)
            if moment > end:
                clock.now = max(clock.now, end)
                return
            clock.now = max(clock.now, moment)
            if self.next_row <= moment:
                foreign.append(self.world)
                self.next_row += self.period_ms
            for at, driver in due.values():
                while at <= moment and driver.alive:
                    jobs.advance(driver)


def run(size: str, work: Path) -> Report:  # noqa: ARG001 - nothing is written
    """Raises: WrongResult if a run does not commit, loses a row or shows one twice."""
    raw: dict[str, Any] = {}
    rows = []
    for period in PERIODS_S:
        for job in JOBS_S:
            progress(f"a late row every {period} s, jobs of {job} s")
            for mode in MODES:
                found = [
                    Beside(mode, job * 1000, period * 1000, seed).run()
                    for seed in range(RUNS[size])
                ]
                raw[f"{period} s, {job} s, {mode}"] = found
                rows.append((f"{period} s", f"{job} s", mode, *_cells(found)))
    return Report(
        name="exclusive",
        title="Exclusive compaction beside late rows",
        setting=(
            "Simulated time: the real engine, log and locks, with a clock, a store and jobs of the "
            f"simulator. A `Major` compaction of {LOADS} files, with `lockMode: Exclusive` and its "
            "defaults (5 yields, back-off from 1 minute), and with `Concurrent`. Another writer "
            "appends to the chunk at a fixed period that begins at a random time. The job is "
            f"looked at every second. {RUNS[size]} runs; medians, with minimum and maximum. Files "
            "left alone are those of late rows that are no part of the output."
        ),
        tables=(
            Table(
                "",
                (
                    "a late row every",
                    "a job takes",
                    "mode",
                    "yields",
                    "committed exclusively",
                    "time to success",
                    "files left alone",
                ),
                tuple(rows),
            ),
        ),
        checks=("Every run commits, within six attempts.", "Every row is there once."),
        raw=raw,
    )


def _cells(found: list[dict[str, Any]]) -> tuple[str, ...]:
    if any(each["attempts"] > 6 for each in found):  # maxYields and 1
        raise WrongResult(f"more than six attempts: {found}")
    alone = sum(each["exclusive"] for each in found)
    return (
        _spread([each["yields"] for each in found], 0),
        f"{alone} of {len(found)}" if alone or any(each["yields"] for each in found) else "–",
        f"{_spread([each['seconds'] for each in found], 0)} s",
        _spread([each["left"] for each in found], 0),
    )


def _spread(values: list[float], digits: int) -> str:
    low, high = min(values), max(values)
    middle = f"{statistics.median(values):,.{digits}f}"
    return middle if low == high else f"{middle} ({low:,.{digits}f} to {high:,.{digits}f})"
