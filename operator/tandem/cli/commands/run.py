"""`tandem run` and `tandem plan`."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

from tandem.cli import engine, plan_report, report, source_check
from tandem.cli.errors import Exit, pasteable, say
from tandem.cli.output import Output, print_data, print_table, terminal_width
from tandem.cli.progress import ProgressDisplay
from tandem.cli.report import RepeatCommands
from tandem.cli.resource_filter import select
from tandem.spec import AnyKind, AnyResource, IndexServer, LakeTable, ResourceOutcome, load_all


def run(
    paths: Sequence[str],
    *,
    output: Output,
    only: Sequence[str],
    parallel: int,
    again: bool,
    quiet: bool,
    verbose: bool = False,
) -> Exit:
    """Check everything, then run it. Raises what `load` raises before anything is started."""
    resources = _checked(select(load_all(paths), only), paths)
    return run_resources(
        resources,
        output=output,
        parallel=parallel,
        again=again,
        quiet=quiet,
        verbose=verbose,
        commands=_commands(paths, resources),
    )


def _commands(paths: Sequence[str], resources: Sequence[AnyResource]) -> RepeatCommands:
    locations = report.locations_of(resources)
    typed = pasteable(["tandem", "run", *(word for path in paths for word in ("-f", path))])
    return RepeatCommands(typed, f"{typed} --again {{ids}}", "--only", locations=locations)


def run_resources(
    resources: Sequence[AnyResource],
    *,
    output: Output,
    parallel: int,
    again: bool,
    quiet: bool,
    verbose: bool,
    commands: RepeatCommands,
    shown: Callable[[ResourceOutcome], bool] = lambda _: True,
) -> Exit:
    """Run resources and print their results.

    Args:
        commands: what to type to run them again, for remedies.
        shown: which results have a line in a table.
    """
    progress = ProgressDisplay(quiet=quiet, verbose=verbose)
    with interruptible() as cancel, progress as display:
        outcomes = engine.run(
            resources, parallel=parallel, again=again, observer=display, cancel=cancel
        )
    if output is Output.TABLE:
        print_results([each for each in outcomes if shown(each)], commands)
    else:
        print_data(report.documents(outcomes), output)
    if again_line := report.new_run(outcomes, commands):
        say(again_line)
    return report.exit_of(outcomes, interrupted=cancel.is_set())


def print_results(outcomes: Sequence[ResourceOutcome], commands: RepeatCommands) -> None:
    """Print what operations did, as a table."""
    now_ms, width = time.time_ns() // 1_000_000, terminal_width()
    print_table(report.results(outcomes, commands, now_ms=now_ms, width=width))


def plan(paths: Sequence[str], *, output: Output, only: Sequence[str]) -> Exit:
    """Print what `run` would do now."""
    resources = _checked(select(load_all(paths), only), paths)
    return plan_resources(resources, output=output, commands=_commands(paths, resources))


def plan_resources(
    resources: Sequence[AnyResource],
    *,
    output: Output,
    commands: RepeatCommands,
    shown: Callable[[ResourceOutcome], bool] = lambda _: True,
) -> Exit:
    """Print what `run_resources` would do now. Arguments as there."""
    outcomes = engine.plan(resources)
    seen = source_check.check_sources(outcomes)
    for resource in (outcome.resource for outcome in outcomes):
        if (sight := seen.get(resource.id)) and sight.warning:
            say(f"Warning: {commands.reworded(f'{resource.id}.{sight.warning}', resource)}")
    if output is Output.TABLE:
        sources = {id_: each.summary for id_, each in seen.items()}
        chosen = [each for each in outcomes if shown(each)]
        print_table(plan_report.blocks(chosen, sources, commands))
    else:
        print_data(report.documents(outcomes), output)
    return report.exit_of(outcomes, interrupted=False)


def _checked(found: Sequence[AnyKind], paths: Sequence[str]) -> list[AnyResource]:
    file = paths[0] if len(paths) == 1 else "FILE"
    resources: list[AnyResource] = []
    for resource in found:
        if isinstance(resource, IndexServer):
            say(f"Note: {resource.id} needs the operator; here, `tandem index serve` serves tables")
        else:
            resources.append(resource)
    for resource in resources:
        if isinstance(resource, LakeTable):
            for note in report.notes_on(resource, file):
                say(f"Note: {resource.id}: {note}")
        _check_template(resource)
    return resources


def _check_template(resource: AnyResource) -> None:
    """Check `sparkTemplate`, which local jobs do not use: a cluster would refuse an invalid one.
    The policy of an operator is not known here."""
    from tandem.spark.application import template

    if not isinstance(resource, LakeTable):
        template.check(
            resource.spec.spark_template, resource=resource.id, field="spec.sparkTemplate"
        )
    elif resource.spec.compaction is not None:
        template.check(
            resource.spec.compaction.spark_template,
            resource=resource.id,
            field="spec.compaction.sparkTemplate",
        )


@contextmanager
def interruptible() -> Iterator[threading.Event]:
    """An event that is set by the first SIGINT or SIGTERM. A second one ends the process at
    once, as by default; the table stays valid, and only unreferenced files are left behind."""
    cancel = threading.Event()
    before: dict[int, Any] = {}

    def interrupt(number: int, _frame: FrameType | None) -> None:
        cancel.set()
        signal.signal(number, before[number])
        say("Stopping; committed changes stay. Press again to stop immediately.")

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, interrupt)
    try:
        yield cancel
    finally:
        for caught, handler in before.items():
            signal.signal(caught, handler)
