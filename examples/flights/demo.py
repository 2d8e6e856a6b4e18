"""The main job on real data: a compaction while rows are updated and deleted, in both orders.

    make demo

365 daily loads of the flights of 2013, written by `deltalake`. Then, twice on a fresh copy: a
compaction (`compaction.yaml`), an update (`update.yaml`) and a delete (`delete.yaml`) all read
the same version, and

    update first        the statements commit while the compaction is running;
    compaction first    the compaction commits while the statements are running,

and once more with the update first on a table as `deltalake` makes it by default, of protocol 1/2,
without deletion vectors: files are made again instead, and the protocol stays.

The order is forced at the engine's named points, never by a delay. At the end the
rows must be those that DuckDB computes from the raw file, one statement after the other.
Then `merge_on_read.py`: upserts and deletes by key in a log beside a third copy.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import data
import merge_on_read
from deltalake import DeltaTable
from showing import (
    console,
    has_the_rows,
    load_daily,
    relocated,
    show_edited,
    show_outcomes,
    show_replayed,
    show_sizes,
    verdict,
)

from tandem.cli.report import ProgressDisplay
from tandem.operations import runner as engine
from tandem.operations.execute import ExecutionOptions
from tandem.operations.machine.events import Effect, Event, Point
from tandem.operations.ports import Ports
from tandem.operations.session.job_control import FileJobs
from tandem.spark.local_spark import LocalRunner
from tandem.spec import AnyResource, load
from tandem.spec.resources import ResourceOutcome
from tandem.spec.status import Phase

HERE = Path(__file__).resolve().parent
WORK = Path(os.environ.get("TANDEM_CACHE", Path.home() / ".cache" / "tandem")) / "demo"
PATIENCE_S = 240
"""Seconds that one side waits for the other before it continues alone (and the demo fails)."""

Hook = Callable[[Effect, Callable[[], Event]], Event]


class Gate:
    """Opens after `count` events, or when its side has ended."""

    def __init__(self, count: int = 1) -> None:
        self._left = count
        self._open = threading.Event()
        self._lock = threading.Lock()

    def arrive(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left <= 0:
                self._open.set()

    def force(self) -> None:
        self._open.set()

    def wait(self) -> None:
        self._open.wait(PATIENCE_S)


def side(planned: Gate, others_planned: Gate, commit_after: Gate | None) -> Hook:
    """The hook of one side: all sides read the table before any side commits, and if
    `commit_after` is given, this side reconciles only once the others have committed."""

    def interceptor(effect: Effect, call: Callable[[], Event]) -> Event:
        if effect.point is Point.RECONCILE:
            others_planned.wait()
            if commit_after is not None:
                commit_after.wait()
        event = call()
        if effect.point is Point.PERSIST_PLAN:
            planned.arrive()
        return event

    return interceptor


@dataclass(frozen=True)
class Story:
    """One order of events, on its own copy of the table."""

    title: str
    folder: Path
    statements_first: bool
    vectors: bool = True


def run_story(story: Story, resources: Sequence[AnyResource]) -> list[ResourceOutcome]:
    """Run compaction and statements concurrently, in the order of the scenario."""
    table, compaction, *statements = relocated(resources, story.folder)
    compaction_planned, statements_planned = Gate(), Gate(len(statements))
    compaction_done, statements_done = Gate(), Gate()
    ports = Ports(jobs=FileJobs(LocalRunner()))

    def one_side(wanted: list[AnyResource], hook: Hook, gates: list[Gate]) -> list[ResourceOutcome]:
        options = engine.RunOptions(ports, execution=ExecutionOptions(interceptor=hook))
        try:
            return engine.run([table, *wanted], options, observer=display)[1:]
        finally:
            for gate in gates:
                gate.force()

    with ProgressDisplay() as display, ThreadPoolExecutor(2) as pool:
        first = pool.submit(
            one_side,
            [compaction],
            side(
                compaction_planned,
                statements_planned,
                statements_done if story.statements_first else None,
            ),
            [compaction_planned, compaction_done],
        )
        second = pool.submit(
            one_side,
            list(statements),
            side(
                statements_planned,
                compaction_planned,
                None if story.statements_first else compaction_done,
            ),
            [statements_planned, statements_done],
        )
        return [*first.result(), *second.result()]


def protocol_of(table: Path) -> tuple[int, int]:
    """The least versions of a reader and of a writer."""
    found = DeltaTable(table.as_uri()).protocol()
    return found.min_reader_version, found.min_writer_version


def main() -> int:
    began = time.monotonic()
    shutil.rmtree(WORK, ignore_errors=True)
    original = WORK / "flights"
    resources = load(
        [HERE / f"{name}.yaml" for name in ("table", "compaction", "update", "delete")]
    )
    console.rule("The flights of 2013, as 365 daily loads")
    raw = data.unpack(WORK)
    rows = load_daily(raw, original)
    default = WORK / "flights-by-default"
    load_daily(raw, default, vectors=False)
    answer = data.expected(raw)
    console.print(f"{rows:,} rows in {original}, and without deletion vectors in {default}")

    right = True
    for story in (
        Story("Update first: rows change while the compaction runs", WORK / "update-first", True),
        Story(
            "Compaction first: it commits while the statements run",
            WORK / "compaction-first",
            False,
        ),
        Story(
            "Update first, on a table without deletion vectors (protocol 1/2)",
            WORK / "by-default",
            True,
            vectors=False,
        ),
    ):
        console.rule(story.title)
        shutil.copytree(original if story.vectors else default, story.folder)
        outcomes = run_story(story, resources)
        show_outcomes(outcomes)
        if story.vectors:
            show_replayed(story.folder)
        else:
            show_edited(outcomes)
        show_sizes(original, story.folder)
        right &= verdict(
            "every operation succeeded",
            all(outcome.status.phase is Phase.SUCCEEDED for outcome in outcomes),
        )
        right &= has_the_rows(story.folder, answer)
        if not story.vectors:
            right &= verdict("the protocol is still 1/2", protocol_of(story.folder) == (1, 2))
    console.rule("Merge-on-read: upserts and a delete by key, without a rewritten file")
    logged = WORK / "merge-on-read"
    shutil.copytree(original, logged)
    right &= merge_on_read.run(logged, raw)
    console.rule()
    console.print(f"Took {time.monotonic() - began:.0f} s. Look around:")
    console.print(
        f"  .venv/bin/tandem table segments {WORK / 'update-first'} --all", highlight=False
    )
    console.print(f"  .venv/bin/tandem history {WORK / 'update-first'}", highlight=False)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
