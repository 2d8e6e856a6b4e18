"""What `tandem plan` prints as text. Pure.

The status of a plan is that of a dry run, which has succeeded as such; it is shown as "Planned".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tandem.cli import output
from tandem.cli.report import RepeatCommands, file_count, message_of, shortened_names
from tandem.errors import Reason
from tandem.jobs.runner import SMALL_BYTES
from tandem.spec import AnyResource, OperationStatus, ResourceOutcome, TableStatus
from tandem.spec.common import OPERATIONS
from tandem.spec.compaction import CompactionType, LayoutStrategy, TableCompaction
from tandem.spec.status import (
    ENDED,
    PLANNED_ONLY,
    NextCompaction,
    NextDrop,
    NextLogAction,
    Phase,
    Plan,
)
from tandem.spec.update import SourceFormat, TableUpdate
from tandem.text import human_bytes

if TYPE_CHECKING:
    from rich.console import Group


# A short description of a resource's spec, without its table, for a plan. Pure.
#
# Made from the spec as typed, or as the API server has it: `tandem plan` and `kubectl tandem plan`
# print the same.


_CLAUSE = re.compile(r"'(?:[^'\\]|\\.|'')*'|`(?:[^`]|``)*`| (?=WHEN (?:NOT )?MATCHED)", re.DOTALL)


def lines_of(kind: str, spec: Mapping[str, Any], *, source_now: str = "") -> list[tuple[str, str]]:
    """Names and values: what the kind prints of its spec, and the source. `source_now` is a
    summary of the source as it is now, "" if there is none."""
    model = OPERATIONS[kind]
    _, source = model.source_in(spec)
    if not source:
        return model.plan_lines(spec)
    now = f"; {source_now}" if source_now else ""
    return [*model.plan_lines(spec), ("source", f"{_source(source)}{now}")]


def clause_by_clause(statement: str) -> str:
    """A canonical statement with every clause of a merge on a line of its own."""
    return _CLAUSE.sub(lambda found: "\n" if found[0] == " " else found[0], statement)


def _source(source: Mapping[str, Any]) -> str:
    summary = f"{source.get('format')} {source.get('location')}"
    if source.get("format") != "Delta":
        return summary
    version = source.get("version")
    which = f"version {version}" if version is not None else "its latest version"
    return f"{summary}, {which}"


SourceSummaries = Mapping[str, str]
"""The summary of a resource's source, by the resource's id."""


def blocks(
    outcomes: Sequence[ResourceOutcome], sources: SourceSummaries, commands: RepeatCommands
) -> Group:
    """A block per resource: what would be read, written and locked."""
    return output.blocks(
        (
            f"{outcome.resource.id}: {commands.reworded(_headline(outcome), outcome.resource)}",
            [*_lines(outcome, sources), ("to repeat", _again(outcome, commands))],
        )
        for outcome in outcomes
    )


def _headline(outcome: ResourceOutcome) -> str:
    status = outcome.status
    message = message_of(status)
    if isinstance(status, TableStatus):
        if status.phase is Phase.FAILED:
            return f"Would fail, {message}"
        return message or "would be adopted as it is"
    if _reason(status) == Reason.DRY_RUN:
        if _is_planned(status):
            return "Planned"
        return f"Nothing to do, {_in_a_sentence(message)}"
    if status.phase is Phase.FAILED and not status.attempt:
        return f"Would fail, {message}"
    if _is_recorded(status):
        failed = status.phase is Phase.FAILED  # then a reason stands first
        return f"{status.phase} already, {message if failed else _in_a_sentence(message)}"
    return f"{status.phase}, {message}" if message else str(status.phase)


def _in_a_sentence(message: str) -> str:
    return message[:1].lower() + message[1:]


def _is_planned(status: OperationStatus) -> bool:
    return message_of(status) == PLANNED_ONLY


def _is_recorded(status: OperationStatus) -> bool:
    """Whether this is the result of an earlier run: a plan ends neither by itself nor after an
    attempt."""
    planned = _reason(status) == Reason.DRY_RUN
    refused = status.phase is Phase.FAILED and not status.attempt
    return status.phase in ENDED and not planned and not refused


def _again(outcome: ResourceOutcome, commands: RepeatCommands) -> str:
    """The command that repeats an operation with a recorded result; "" for others."""
    status = outcome.status
    if isinstance(status, TableStatus) or not _is_recorded(status):
        return ""
    return commands.all_of([outcome.resource.id])


def _reason(status: OperationStatus) -> str:
    return status.conditions[0].reason if status.conditions else ""


def _lines(outcome: ResourceOutcome, sources: SourceSummaries) -> list[tuple[str, str]]:
    """The lines of a plan: name and value."""
    status, resource = outcome.status, outcome.resource
    if isinstance(status, TableStatus):
        return _of_table(status)
    if status.plan is None and status.phase is Phase.FAILED:
        return []
    lines = lines_of(
        resource.kind_name, resource.manifest()["spec"], source_now=sources.get(resource.id, "")
    )
    if status.plan is None:
        return lines
    plan = status.plan
    idle = not plan.inputs and not _is_planned(status)
    return [
        *lines_of_plan(plan, lines, idle=idle),
        ("runs", "" if idle else _where(resource, plan)),
        ("locks", _folded_locks(plan.locks or ())),
    ]


def lines_of_plan(
    plan: Plan, asked: Sequence[tuple[str, str]], *, idle: bool = False
) -> list[tuple[str, str]]:
    """What it reads and writes, after `asked`, the lines of the spec. `idle`: it writes nothing."""
    segments = shortened_names(plan.segments)
    if plan.outputs:
        segments = f"{segments} → {shortened_names(plan.outputs)}".lstrip()
    output = "" if plan.output_files is None else file_count(plan.output_files)
    if plan.output_bytes is not None:
        output += f", about {human_bytes(plan.output_bytes)}"
    steps = plan.steps or ()
    if len(steps) == 1:
        steps = ()  # `segments` says the same
    return [
        ("statement", clause_by_clause(plan.statement or "")),
        *asked,
        ("first", plan.first or ""),
        ("reads", f"version {plan.read_version}: {file_count(plan.inputs)}, "
                  f"{human_bytes(plan.input_bytes)}"),
        ("segments", segments),
        ("instants", shortened_names(plan.instants or ())),
        ("steps", "\n".join(_some([_shortened_step(step) for step in steps]))),
        ("writes", "" if idle else output),
        ("target size", plan.target_file_size or ""),
        ("copies", plan.copies or ""),
        ("no vectors", plan.edits or ""),
    ]  # fmt: skip


_ONE_SEGMENT = re.compile(r"(\w+ segment) (\S+)")


def _folded_locks(locks: Sequence[str]) -> str:
    """`Rewrite segments 0, 1`: what stands before the name of each segment is said once."""
    found = [_ONE_SEGMENT.fullmatch(lock) for lock in locks]
    kinds = {each[1] for each in found if each is not None}
    if len(locks) < 2 or len(kinds) != 1 or None in found:
        return ", ".join(_some(locks))
    return f"{kinds.pop()}s {shortened_names([each[2] for each in found if each is not None])}"


_HERE = "in this process, without Spark"


def _where(resource: AnyResource, plan: Plan) -> str:
    """Where `tandem run` does the job, if it does it itself: a small compaction, update, delete or
    merge."""
    if plan.input_bytes > SMALL_BYTES:
        return ""
    if isinstance(resource, TableUpdate):
        merge = resource.spec.merge
        if merge is not None and merge.source.format in (SourceFormat.PARQUET, SourceFormat.DELTA):
            return f"{_HERE}, unless the source, an expression or a row needs it"
        if resource.spec.update is None and resource.spec.delete is None:
            return ""
        return f"{_HERE}, unless an expression or a row needs it"
    if not isinstance(resource, TableCompaction):
        return ""
    if resource.spec.type is CompactionType.LOG_MERGE:
        return ""
    sorts = resource.spec.layout.strategy is not LayoutStrategy.BIN_PACK
    return f"{_HERE}{', if the rows fit into memory' if sorts else ''}"


def _of_table(status: TableStatus) -> list[tuple[str, str]]:
    lines = []
    if status.version is not None:
        size = f"{file_count(status.files or 0)}, {human_bytes(status.bytes or 0)}"
        rows = "" if status.rows is None else f", {status.rows:,} rows"
        lines.append(("is at", f"version {status.version}: {size}{rows}"))
    coming, drop = status.next_compaction, status.next_drop
    if coming is not None:
        due = _counted(coming.chunks or (), coming.chunks_due or 0)
        lines += [*_next("an operator would do", coming), ("chunks due", due)]
    if drop is not None:
        old = ", ".join(drop.chunks or ())
        lines += [*_next("and with old rows", drop), ("old enough", old)]
    if status.log is not None and status.log.next is not None:
        label = "and with its log" if coming else "an operator would do"
        lines += _next(label, status.log.next)
    return lines


def _next(label: str, action: NextCompaction | NextDrop | NextLogAction) -> list[tuple[str, str]]:
    return [
        (label, action.what or "nothing"),
        ("at", action.next_time or ""),
        ("why not now", action.why),
    ]


def _counted(names: Sequence[str], count: int) -> str:
    more = f", … ({count} in all)" if count > len(names) else ""
    return ", ".join(names) + more


def _shortened_step(step: str) -> str:
    """`a, b, c → d` with the middle of a long list left out."""
    inputs, arrow, output = step.partition(" → ")
    return shortened_names(inputs.split(", ")) + arrow + output


def _some(items: Sequence[str], limit: int = 3) -> list[str]:
    return [*items[:limit], *([f"… ({len(items)} in all)"] if len(items) > limit else [])]
