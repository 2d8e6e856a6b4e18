"""The main job on real data: a compaction while rows are updated and deleted, in both orders.

    make demo

365 daily loads of the flights of 2013, written by `deltalake`. Then, twice on a fresh copy: a
compaction (`compaction.yaml`), an update (`update.yaml`) and a delete (`delete.yaml`) all read
the same version, and

    update first        the statements commit while the compaction is running;
    compaction first    the compaction commits while the statements are running.

The order is forced at the engine's named points, never by waiting some time. In the end the
rows must be those that DuckDB computes from the raw file, one statement after the other.
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
import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tandem.cli.engine import Outcome
from tandem.cli.output import human_bytes, table_of
from tandem.cli.progress import ProgressDisplay
from tandem.cli.report import message_of
from tandem.delta import scan
from tandem.delta.log import DeltaLog
from tandem.operations import run as engine
from tandem.operations.driver import Drive
from tandem.operations.effects import Effect, Point
from tandem.operations.events import Event
from tandem.operations.ports import Ports
from tandem.spark.local import LocalRunner
from tandem.spec import AnyResource, LakeTable, OperationStatus, load
from tandem.spec.status import Phase
from tandem.storage import open_store
from tandem.timeline.segments import segments

HERE = Path(__file__).resolve().parent
WORK = Path(os.environ.get("TANDEM_CACHE", Path.home() / ".cache" / "tandem")) / "demo"
PATIENCE_S = 240
"""How long one side waits for the other before it goes on alone (and the demo fails)."""

Hook = Callable[[Effect, Callable[[], Event]], Event]
console = Console() if sys.stdout.isatty() else Console(width=110)


class Gate:
    """Opens when something has happened `count` times, or when its side has ended."""

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
    """The hook of one side: all sides read the table before anyone commits, and if
    `commit_after` is given this one reconciles only once the others have committed."""

    def around(effect: Effect, call: Callable[[], Event]) -> Event:
        if effect.point is Point.RECONCILE:
            others_planned.wait()
            if commit_after is not None:
                commit_after.wait()
        event = call()
        if effect.point is Point.PERSIST_PLAN:
            planned.arrive()
        return event

    return around


@dataclass(frozen=True)
class Story:
    """One order of events, on its own copy of the table."""

    title: str
    folder: Path
    statements_first: bool


def run_story(story: Story, resources: Sequence[AnyResource]) -> list[Outcome]:
    """Run compaction and statements side by side, in the order of the story."""
    table, compaction, *statements = relocated(resources, story.folder)
    compaction_planned, statements_planned = Gate(), Gate(len(statements))
    compaction_done, statements_done = Gate(), Gate()
    ports = Ports(jobs=LocalRunner())

    def one_side(wanted: list[AnyResource], hook: Hook, gates: list[Gate]) -> list[Outcome]:
        options = engine.RunOptions(ports, drive=Drive(around=hook))
        try:
            return [
                Outcome(outcome.resource, outcome.status)
                for outcome in engine.run([table, *wanted], options, observer=display)
            ][1:]
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


def relocated(resources: Sequence[AnyResource], folder: Path) -> list[AnyResource]:
    """The resources as they are in the files, but with the table in `folder`."""
    return [
        resource.model_copy(
            update={"spec": resource.spec.model_copy(update={"location": folder.as_uri()})}
        )
        if isinstance(resource, LakeTable)
        else resource
        for resource in resources
    ]


def show_outcomes(outcomes: Sequence[Outcome]) -> None:
    """What each operation did."""
    rows = []
    for outcome in outcomes:
        status = outcome.status
        result = status.result if isinstance(status, OperationStatus) else None
        if result is None:
            rows.append([outcome.resource.id, status.phase, None, "", "", "", message_of(status)])
            continue
        affected, reconciled = result.rows_affected, result.reconciled
        rows.append(
            [
                outcome.resource.id,
                status.phase,
                result.version,
                f"-{result.files_removed or 0} +{result.files_added or 0}",
                ""
                if affected is None
                else f"{affected.updated:,} updated, {affected.deleted:,} deleted",
                "" if reconciled is None else str(reconciled.commits_seen),
                "" if reconciled is None else str(reconciled.rounds),
            ]
        )
    console.print(
        table_of(
            ["operation", "ended", "version", "files", "rows", "commits met", "rounds"],
            rows,
        )
    )


def show_replayed(folder: Path) -> None:
    """Which deletes were replayed onto which segment. The compaction wrote its segments without
    a single deleted row, so what is deleted in them now was moved there."""
    snapshot = DeltaLog(open_store(folder.as_uri())).snapshot()
    found = [s for s in segments(snapshot.adds()) if s.level > 0 and s.deleted_rows]
    total = sum(segment.deleted_rows for segment in found)
    each = ", ".join(f"{segment.name}: {segment.deleted_rows:,}" for segment in found)
    console.print(
        f"{total:,} deletes were replayed onto {len(found)} compacted segments. {each}",
        highlight=False,
    )


def show_sizes(before: Path, after: Path) -> None:
    """Files, bytes and segments before and after."""
    rows = []
    for title, folder in (("before", before), ("after", after)):
        snapshot = DeltaLog(open_store(folder.as_uri())).snapshot()
        found = segments(snapshot.adds())
        deleted = sum(segment.deleted_rows for segment in found)
        rows.append(
            [
                title,
                snapshot.version,
                len(found),
                snapshot.num_files,
                human_bytes(snapshot.size_bytes),
                f"{deleted:,}",
            ]
        )
    console.print(
        table_of(["table", "version", "segments", "files", "size", "rows hidden by DVs"], rows)
    )


def read_by_us(folder: Path) -> pa.Table:
    """The rows as our reader sees them."""
    log = DeltaLog(open_store(folder.as_uri()))
    return scan.scan(log.snapshot(), log.store).read_all()


def verdict(text: str, right: bool) -> bool:
    mark = "[green]yes[/green]" if right else "[bold red]NO[/bold red]"
    console.print(f"  {text}: {mark}", highlight=False)
    return right


def main() -> int:
    began = time.monotonic()
    shutil.rmtree(WORK, ignore_errors=True)
    original = WORK / "flights"
    resources = load(
        [HERE / f"{name}.yaml" for name in ("table", "compaction", "update", "delete")]
    )
    console.rule("The flights of 2013, as 365 daily loads")
    raw = data.unpack(WORK)
    columns = (TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        bar = progress.add_task("deltalake appends", total=None)
        rows = data.load_daily(
            raw, original, lambda done, total: progress.update(bar, completed=done, total=total)
        )
    answer = data.expected(raw)
    console.print(f"{rows:,} rows in {original}")

    right = True
    for story in (
        Story("Update first: rows change while the compaction runs", WORK / "update-first", True),
        Story(
            "Compaction first: it commits while the statements run",
            WORK / "compaction-first",
            False,
        ),
    ):
        console.rule(story.title)
        shutil.copytree(original, story.folder)
        outcomes = run_story(story, resources)
        show_outcomes(outcomes)
        show_replayed(story.folder)
        show_sizes(original, story.folder)
        right &= verdict(
            "every operation succeeded",
            all(outcome.status.phase is Phase.SUCCEEDED for outcome in outcomes),
        )
        ours, theirs = read_by_us(story.folder), data.read_by_deltalake(story.folder)
        right &= verdict(
            f"our reader's {ours.num_rows:,} rows are DuckDB's serial result",
            data.differences(answer, ours) == 0,
        )
        right &= verdict(
            f"deltalake's {theirs.num_rows:,} rows are, too", data.differences(answer, theirs) == 0
        )
    console.rule()
    console.print(f"Took {time.monotonic() - began:.0f} s. Look around:")
    console.print(
        f"  .venv/bin/tandem table segments {WORK / 'update-first'} --all", highlight=False
    )
    console.print(f"  .venv/bin/tandem history {WORK / 'update-first'}", highlight=False)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
