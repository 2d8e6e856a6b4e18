"""Shows operations while they run: bars on a terminal, a line for each elsewhere."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Self

from tandem.cli.errors import say
from tandem.cli.output import error_console
from tandem.spec import AnyResource, LakeTable, OperationStatus, ResourceStatus
from tandem.spec.status import ENDED, Phase

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

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
        console = error_console()
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
