"""What `run` prints: progress while operations run, and results when they have ended; also what it
shares with `plan` (`plan_report`).
"""

from __future__ import annotations

import itertools
import re
import shlex
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from tandem.cli.errors import Exit, pasteable, say, with_location
from tandem.cli.output import blocks, natural_width, table_of
from tandem.operations.explain import left_by_replace
from tandem.remedies import remedy_here
from tandem.spec import (
    AnyResource,
    LakeTable,
    OperationStatus,
    ResourceOutcome,
    ResourceStatus,
    TableStatus,
)
from tandem.spec.status import ENDED, OperationResult, Phase, RowsAffected, unix_ms
from tandem.text import human_bytes

if TYPE_CHECKING:
    from rich.console import Group
    from rich.progress import Progress, TaskID


def locations_of(resources: Iterable[AnyResource]) -> dict[str, str]:
    """Where tables are, by namespace and name."""
    return {
        f"{each.namespace}/{each.name}": each.address
        for each in resources
        if isinstance(each, LakeTable)
    }


def notes_on(table: LakeTable, file: str) -> list[str]:
    """What a table asks for that `run` does not do. `file` is where the table was read from."""
    spec = table.spec
    rows = None if spec.retention is None else spec.retention.rows
    asked = {"spec.compaction": spec.compaction, "spec.retention.rows": rows}
    maintain = pasteable(["tandem", "maintain", file])
    return [
        f"{field} is for the operator, and has no effect here; `{maintain}` does once what it asks "
        "for"
        for field, value in asked.items()
        if value is not None
    ]


def documents(outcomes: Sequence[ResourceOutcome]) -> list[dict[str, Any]]:
    """The resources as given, each with its `status`: what `-o json` prints."""
    return [outcome.manifest() for outcome in outcomes]


def exit_of(outcomes: Sequence[ResourceOutcome], *, interrupted: bool) -> Exit:
    """The exit code of `run`. A suspended operation does not count as failed."""
    if interrupted:
        return Exit.INTERRUPTED
    failed = any(outcome.status.phase is Phase.FAILED for outcome in outcomes)
    return Exit.FAILED if failed else Exit.OK


@dataclass(frozen=True)
class RepeatCommands:
    """What to type to run resources again.

    Attributes:
        run: the command as it was typed.
        again: the command that repeats operations of the ids `{ids}` only, even if they have a
            recorded result.
        only: what stands before each of the ids.
        wording: what messages say of fields of resources, and what is said of options instead.
        typed: whether options were typed, and no resource.
        locations: where tables are, by namespace and name (`default/flights`).
        more: the option that helps, by the reason of a failure.
    """

    run: str
    again: str
    only: str = ""
    wording: Mapping[str, str] = field(default_factory=dict)
    typed: bool = False
    locations: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, str] = field(default_factory=dict)

    def reworded(self, message: str, resource: AnyResource) -> str:
        """A message about a resource: to those who typed options and no resource, and with the
        table's location in the commands that it names."""
        for said, instead in self.wording.items():
            message = message.replace(said, instead)
        table = resource.name if isinstance(resource, LakeTable) else resource.spec.table_ref.name
        location = self.locations.get(f"{resource.namespace}/{table}", "")
        return with_location(message, location) if location else message

    def of(self, outcome: ResourceOutcome, reason: str) -> str:
        """The command that starts this resource again after a failure, and no operation that has
        succeeded."""
        if isinstance(outcome.status, TableStatus):
            return self.run
        return " ".join(filter(None, (self.all_of([outcome.resource.id]), self.more.get(reason))))

    def all_of(self, ids: Sequence[str]) -> str:
        """The command that starts these operations again, and no others."""
        chosen = " ".join(f"{self.only} {shlex.quote(id_)}" for id_ in ids)
        return self.again.replace("{ids}", chosen)


def is_repeated(outcome: ResourceOutcome) -> bool:
    """Whether a status reports what an earlier run did."""
    status = outcome.status
    return (
        not isinstance(status, TableStatus)
        and status.result is not None
        and bool(status.result.repeated)
    )


def new_run(outcomes: Sequence[ResourceOutcome], commands: RepeatCommands) -> str:
    """What to type to run again what an earlier run did, and nothing else; "" if there is
    nothing."""
    ids = [outcome.resource.id for outcome in outcomes if is_repeated(outcome)]
    if not ids:
        return ""
    them = f"{ids[0]} has" if len(ids) == 1 else f"{len(ids)} operations have"
    return f"{them} ended before, and nothing was done now. For a new run: {commands.all_of(ids)}"


def results(
    outcomes: Sequence[ResourceOutcome], commands: RepeatCommands, *, now_ms: int, width: int
) -> Group:
    """One line per resource, or a block where lines would be wider than `width` characters; below
    them, over the full width, the errors and the commits that were met."""
    from rich.console import Group
    from rich.text import Text

    rows = []
    below = []
    for outcome in outcomes:
        status = outcome.status
        message = commands.reworded(message_of(status), outcome.resource)
        if status.phase is Phase.FAILED and message:
            reason = message.partition(":")[0]
            todo = remedy_here(
                reason, commands.run, commands.of(outcome, reason), typed=commands.typed
            )
            todo = commands.reworded(todo, outcome.resource)
            hint = f"\n    remedy:   {todo}" if todo else ""
            # Errors of jobs name the operation, which stands at the beginning of the line.
            message = message.replace(f"{reason}: {outcome.resource.id}: ", f"{reason}: ", 1)
            below.append(Text(f"{outcome.resource.id}: {message}{hint}\n"))
            message = message.partition(":")[0] + ", see below"
            if is_repeated(outcome):
                message = f"failed {_ago(status, now_ms)}; nothing was done now; see below"
        elif is_repeated(outcome):
            message = f"{_already(outcome, message, now_ms)}; nothing was done now"
        elif message.startswith(committed := f"committed as version {_version(status)}"):
            # It has a column of its own.
            story, message = message.removeprefix(committed).removeprefix(": "), ""
            if story:
                below.append(Text(f"{outcome.resource.id}: {story}.\n"))
        figures = _figures(status)
        rows.append([outcome.resource.id, str(status.phase), _version(status), *figures, message])
    names = ["resource", "phase", "version", "files", "rows", "segments", "message"]
    table = table_of(names, rows)
    if natural_width(table) <= width:
        return Group(table, *below)
    found = (
        (
            f"{row[0]}: {row[1]}",
            [
                (name, str(value))
                for name, value in zip(names[2:], row[2:], strict=True)
                if value is not None
            ],
        )
        for row in rows
    )
    return Group(blocks(found), *below)


def _already(outcome: ResourceOutcome, message: str, now_ms: int) -> str:
    """`already done at version 12, 3 h ago`"""
    version = _version(outcome.status)
    what = f"at version {version}, " if version is not None else ""
    done = f"already done {what}{_ago(outcome.status, now_ms)}"
    return done if version is not None else f"{done}: {message.rstrip('.')}"


def _ago(status: ResourceStatus, now_ms: int) -> str:
    """How long ago an operation ended: `3 h ago`, "" if that is unknown."""
    ended_ms = None if isinstance(status, TableStatus) else unix_ms(status.completion_time)
    if ended_ms is None:
        return ""
    seconds = max(0, now_ms - ended_ms) // 1000
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= (2 * size if unit == "days" else size):
            return f"{seconds // size} {unit} ago"
    return f"{seconds} s ago"


def file_count(files: int) -> str:
    """`1 file`, `2 files`"""
    return "1 file" if files == 1 else f"{files} files"


def message_of(status: ResourceStatus) -> str:
    """The message of the most informative condition: `Succeeded`, otherwise the last one."""
    for wanted in ("Succeeded", "Ready"):
        for condition in status.conditions:
            if condition.type.value == wanted:
                if condition.status == "True":
                    return condition.message
                return f"{condition.reason}: {condition.message}"
    return status.conditions[-1].message if status.conditions else ""


def _version(status: ResourceStatus) -> int | None:
    if isinstance(status, TableStatus):
        return status.version
    return status.result.version if status.result is not None else None


def _figures(status: ResourceStatus) -> tuple[str, str, str]:
    """Files, rows and segments: of a table what it has, of an operation what it did."""
    if isinstance(status, TableStatus):
        size = human_bytes(status.bytes or 0)
        return (
            "" if status.files is None else f"{file_count(status.files)}, {size}",
            "" if status.rows is None else f"{status.rows:,}",
            "" if status.segments is None else f"{status.segments} live",
        )
    result = status.result
    if result is None:
        return "", "", ""
    segments = shortened_names(result.segments or ())
    if result.instants:
        segments = f"instants {shortened_names(result.instants)}"
    return _files(result), _rows(result), segments


def _files(result: OperationResult) -> str:
    if result.files_added is None and result.files_removed is None:
        return ""
    parts = [
        f"{sign}{count} ({human_bytes(size or 0)})"
        for sign, count, size in (
            ("-", result.files_removed, result.bytes_removed),
            ("+", result.files_added, result.bytes_added),
        )
        if count
    ]
    parts += [f"{result.files_marked} marked"] if result.files_marked else []
    return " ".join(parts) or "none"


def _rows(result: OperationResult) -> str:
    affected = result.rows_affected or RowsAffected()
    parts = [
        f"{count:,} {what}"
        for count, what in (
            (affected.updated, "updated"),
            (affected.deleted, "deleted"),
            (affected.inserted, "inserted"),
            (affected.upserted, "upserted"),
        )
        if count
    ]
    if result.replaced is not None:
        parts += left_by_replace(result.replaced)
    if result.reconciled is not None and result.reconciled.deletes_remapped:
        parts.append(f"{result.reconciled.deletes_remapped:,} deletes replayed")
    return ", ".join(parts)


CUT = re.compile(r"… and (\d+) more")
"""The last element of a list that was shortened for a status in a cluster."""


def shortened_names(names: Sequence[str], limit: int = 8) -> str:
    """Names with equal ones joined, and the middle of a long list left out."""
    cut = CUT.fullmatch(names[-1]) if names else None
    more = int(cut[1]) - 1 if cut else 0
    runs = itertools.groupby(names[:-1] if cut else names)
    counts = [(name, len(list(group))) for name, group in runs]
    folded = [f"{name} (×{count})" if count > 1 else name for name, count in counts]
    if not cut and len(folded) <= limit:
        return ", ".join(folded)
    last = "" if cut else f"{folded[-1]} "
    return ", ".join(folded[: limit - 2]) + f", … {last}({len(names) + more} in all)"


# Shows operations while they run: bars on a terminal, a line for each elsewhere.


_COLOURS = {
    Phase.SUCCEEDED: "green",
    Phase.SUPERSEDED: "cyan",
    Phase.FAILED: "red",
    Phase.SUSPENDED: "yellow",
}
# The progress that each phase stands for if the job reports none. Percent.
_FLOOR = {Phase.PENDING: 0, Phase.PLANNED: 5, Phase.LOCKED: 10, Phase.RUNNING: 10}
_JOB_SHARE = 80  # percent of the bar that the job's own progress fills


def percent(status: OperationStatus) -> int:
    """How much of the bar is full, 0 to 100; never goes back within an attempt."""
    if status.phase in ENDED:
        return 100
    if status.phase is Phase.RECONCILING:
        return 95
    floor = _FLOOR.get(status.phase, 0)
    if status.phase is Phase.RUNNING and status.progress is not None:
        return floor + status.progress.percent * _JOB_SHARE // 100
    return floor


def describe(status: ResourceStatus) -> str:
    """The phase, and a short description of the current step."""
    text = str(status.phase)
    if isinstance(status, OperationStatus):
        if status.progress is not None and status.phase is Phase.RUNNING:
            text += f" {status.progress.summary}"
        if status.attempt > 1:
            text += f", attempt {status.attempt}"
        if status.result is not None and status.result.version is not None:
            text += f", version {status.result.version}"
    return text.strip()


def _is_news(resource: AnyResource, status: ResourceStatus) -> bool:
    """Whether a status has a line although not every phase is shown: an operation has ended, or a
    table could not be used."""
    return status.phase is Phase.FAILED or (
        not isinstance(resource, LakeTable) and status.phase in ENDED
    )


class ProgressDisplay:
    """A context manager that is also the observer of a run; may be called from any thread. Without
    a terminal, there is a line for each operation when it has ended; with `verbose`, for each
    phase."""

    def __init__(self, *, quiet: bool = False, verbose: bool = False) -> None:
        self._verbose = verbose
        self._lock = threading.Lock()
        self._quiet = quiet
        self._bars: Progress | None = None
        self._tasks: dict[tuple[str, str, str], TaskID] = {}
        self._last: dict[tuple[str, str, str], Phase] = {}

    def __enter__(self) -> Self:
        from rich.console import Console

        console = Console(stderr=True)
        if not self._quiet and console.is_terminal:
            from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

            self._bars = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24),
                TextColumn("[{task.fields[colour]}]{task.fields[state]}"),
                TimeElapsedColumn(),
                console=console,
            )
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()

    def __call__(self, resource: AnyResource, status: ResourceStatus) -> None:
        if self._quiet:
            return
        with self._lock:
            if self._bars is None:
                changed = self._last.get(resource.key) != status.phase
                if changed and (self._verbose or _is_news(resource, status)):
                    say(f"{resource.id}: {describe(status)}")
            elif not isinstance(resource, LakeTable):
                self._update_bar(self._bars, resource, status)
            self._last[resource.key] = status.phase

    def _update_bar(self, bars: Progress, resource: AnyResource, status: ResourceStatus) -> None:
        from rich.markup import escape

        state = escape(describe(status))
        colour = _COLOURS.get(status.phase, "white")
        task = self._tasks.get(resource.key)
        if task is None:
            task = bars.add_task(resource.id, total=100, state=state, colour=colour)
            self._tasks[resource.key] = task
        done = percent(status) if isinstance(status, OperationStatus) else 0
        bars.update(task, completed=done, state=state, colour=colour)
        if status.phase in ENDED:
            bars.stop_task(task)
