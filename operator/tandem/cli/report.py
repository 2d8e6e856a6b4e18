"""What `run` and `plan` print at their end. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tandem.cli.engine import Outcome, Status
from tandem.cli.exits import Exit
from tandem.cli.output import human_bytes, table_of
from tandem.spec import OperationStatus, TableStatus
from tandem.spec.status import Phase

if TYPE_CHECKING:
    from rich.table import Table

AUTOMATIC_NOTE = (
    "spec.compaction needs the operator: without a cluster it has no effect. "
    "Run a TableCompaction instead."
)


def documents(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """The resources as given, each with its `status`: what `-o json` prints."""
    return [
        {**outcome.resource.manifest(), "status": outcome.status.manifest()} for outcome in outcomes
    ]


def exit_of(outcomes: Sequence[Outcome], *, interrupted: bool) -> Exit:
    """The exit code of `run`. What is suspended did not fail."""
    if interrupted:
        return Exit.INTERRUPTED
    failed = any(outcome.status.phase is Phase.FAILED for outcome in outcomes)
    return Exit.FAILED if failed else Exit.OK


def result_table(outcomes: Sequence[Outcome]) -> Table:
    """One line per resource."""
    rows = []
    for outcome in outcomes:
        status = outcome.status
        rows.append(
            [
                outcome.resource.id,
                str(status.phase),
                _version(status),
                _files(status),
                _rows(status),
                _segments(status),
                message_of(status),
            ]
        )
    return table_of(["resource", "phase", "version", "files", "rows", "segments", "message"], rows)


def plan_table(outcomes: Sequence[Outcome]) -> Table:
    """One line per resource: what would be read, written and locked."""
    rows: list[list[object]] = []
    for outcome in outcomes:
        status = outcome.status
        if not isinstance(status, OperationStatus) or status.plan is None:
            rows.append([outcome.resource.id, str(status.phase), *[None] * 5, message_of(status)])
            continue
        plan = status.plan
        output = "" if plan.output_files is None else f"{plan.output_files} files"
        if plan.output_bytes is not None:
            output += f", about {human_bytes(plan.output_bytes)}"
        rows.append(
            [
                outcome.resource.id,
                str(status.phase),
                str(plan.read_version),
                f"{plan.inputs} files, {human_bytes(plan.input_bytes)}",
                _shortened(plan.segments) + _arrow(plan.outputs),
                output,
                _shortened(plan.locks or ()),
                plan.statement or message_of(status),
            ]
        )
    columns = ["resource", "phase", "reads version", "inputs", "segments", "output", "locks", ""]
    return table_of(columns, rows)


def message_of(status: Status) -> str:
    """The message of the condition that says most: `Succeeded`, else the last one."""
    for wanted in ("Succeeded", "Ready"):
        for condition in status.conditions:
            if condition.type.value == wanted:
                if condition.status == "True":
                    return condition.message
                return f"{condition.reason}: {condition.message}"
    return status.conditions[-1].message if status.conditions else ""


def _version(status: Status) -> int | None:
    if isinstance(status, TableStatus):
        return status.version
    return status.result.version if status.result is not None else None


def _files(status: Status) -> str:
    if isinstance(status, TableStatus):
        if status.files is None:
            return ""
        return f"{status.files} files, {human_bytes(status.bytes or 0)}"
    result = status.result
    if result is None or (result.files_added is None and result.files_removed is None):
        return ""
    return (
        f"-{result.files_removed or 0} ({human_bytes(result.bytes_removed or 0)}) "
        f"+{result.files_added or 0} ({human_bytes(result.bytes_added or 0)})"
    )


def _rows(status: Status) -> str:
    if isinstance(status, TableStatus):
        return "" if status.rows is None else f"{status.rows:,}"
    result = status.result
    if result is None:
        return ""
    parts = []
    if result.rows_affected is not None:
        affected = result.rows_affected
        parts += [
            f"{count:,} {what}"
            for count, what in (
                (affected.updated, "updated"),
                (affected.deleted, "deleted"),
                (affected.inserted, "inserted"),
            )
            if count
        ]
    if result.reconciled is not None and result.reconciled.deletes_remapped:
        parts.append(f"{result.reconciled.deletes_remapped:,} deletes replayed")
    return ", ".join(parts)


def _segments(status: Status) -> str:
    if isinstance(status, TableStatus):
        return "" if status.segments is None else f"{status.segments} live"
    if status.result is None or not status.result.segments:
        return ""
    return _shortened(status.result.segments)


def _arrow(outputs: Sequence[str] | None) -> str:
    return f" → {_shortened(outputs)}" if outputs else ""


def _shortened(names: Sequence[str], limit: int = 8) -> str:
    if len(names) <= limit:
        return ", ".join(names)
    return ", ".join(names[: limit - 2]) + f", … {names[-1]} ({len(names)})"
