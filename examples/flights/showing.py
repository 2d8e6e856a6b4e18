"""Output that the demos on a laptop and in a cluster share: the loads, the operations' outcomes,
the table before and after, and whether its rows are correct."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import data
import duckdb
import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tandem.cli.output import table_of
from tandem.cli.report import message_of
from tandem.delta import scan
from tandem.delta.log.delta_log import DeltaLog
from tandem.spec import AnyResource, LakeTable, OperationStatus
from tandem.spec.resources import ResourceOutcome
from tandem.storage import open_store
from tandem.text import human_bytes
from tandem.timeline.segments import segments

console = Console() if sys.stdout.isatty() else Console(width=110)


def load_daily(raw: Path, table: Path, *, vectors: bool = True) -> int:
    """The daily loads, with a bar; the number of rows."""
    columns = (TextColumn("{task.description}"), BarColumn(24), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        bar = progress.add_task("deltalake appends", total=None)
        return data.load_daily(
            raw,
            table,
            lambda done, total: progress.update(bar, completed=done, total=total),
            vectors=vectors,
        )


def relocated(resources: Sequence[AnyResource], folder: Path) -> list[AnyResource]:
    """The resources of the files, with the table in `folder`."""
    return [
        resource.model_copy(
            update={"spec": resource.spec.model_copy(update={"location": folder.as_uri()})}
        )
        if isinstance(resource, LakeTable)
        else resource
        for resource in resources
    ]


def show_outcomes(outcomes: Sequence[ResourceOutcome]) -> None:
    """The result of each operation."""
    rows: list[list[object]] = []
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
    deleted rows, so all deleted rows in them are replayed ones."""
    snapshot = DeltaLog(open_store(folder.as_uri())).snapshot()
    found = [s for s in segments(snapshot.files) if s.level > 0 and s.deleted_rows]
    total = sum(segment.deleted_rows for segment in found)
    each = ", ".join(f"{segment.name}: {segment.deleted_rows:,}" for segment in found)
    console.print(
        f"{total:,} deletes were replayed onto {len(found)} compacted segments. {each}",
        highlight=False,
    )


def show_edited(outcomes: Sequence[ResourceOutcome]) -> None:
    """What was copied and encoded of the files that were made again without deletion vectors."""
    for outcome in outcomes:
        result = outcome.status.result if isinstance(outcome.status, OperationStatus) else None
        for sentence in (result.summary or ()) if result is not None else ():
            if " edited in " in sentence:
                console.print(f"{outcome.resource.id}: {sentence}.", highlight=False)


def show_sizes(before: Path, after: Path) -> None:
    """Files, bytes and segments before and after."""
    rows = []
    for title, folder in (("before", before), ("after", after)):
        snapshot = DeltaLog(open_store(folder.as_uri())).snapshot()
        found = segments(snapshot.files)
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
    """The rows as read by Tandem."""
    log = DeltaLog(open_store(folder.as_uri()))
    return scan.scan(log.snapshot(), log.store).read_all()


def verdict(text: str, right: bool) -> bool:
    mark = "[green]yes[/green]" if right else "[bold red]NO[/bold red]"
    console.print(f"  {text}: {mark}", highlight=False)
    return right


def has_the_rows(folder: Path, answer: duckdb.DuckDBPyConnection) -> bool:
    """Whether Tandem and deltalake read the rows that DuckDB computed."""
    ours, theirs = read_by_us(folder), data.read_by_deltalake(folder)
    right = verdict(
        f"our reader's {ours.num_rows:,} rows are DuckDB's serial result",
        data.differences(answer, ours) == 0,
    )
    return right & verdict(
        f"deltalake's {theirs.num_rows:,} rows are, too", data.differences(answer, theirs) == 0
    )
