"""`tandem run` and `tandem plan`."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from tandem.cli import plan_report, report
from tandem.cli.errors import Exit, pasteable, say
from tandem.cli.output import Output, print_data, print_table, terminal_width
from tandem.cli.report import ProgressDisplay, RepeatCommands, file_count
from tandem.errors import (
    BucketNotFound,
    DataFileMissing,
    InvalidSpec,
    ObjectNotFound,
    Reason,
    ReferenceNotFound,
    TableNotFound,
    TandemError,
    UnsupportedFeature,
    VersionNotFound,
)
from tandem.spec import (
    AnyKind,
    AnyResource,
    IndexServer,
    LakeTable,
    Operation,
    ResourceOutcome,
    load_all,
)
from tandem.spec.status import Phase
from tandem.text import human_bytes


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
    from tandem.operations import runner

    options = runner.RunOptions(parallel=parallel, again=again, reads_sources=True)
    progress = ProgressDisplay(quiet=quiet, verbose=verbose)
    with interruptible() as cancel, progress as display:
        outcomes = runner.run(resources, options, observer=display, cancel=cancel)
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
    from tandem.operations import runner

    outcomes = runner.plan(resources, runner.RunOptions(reads_sources=True))
    seen = check_sources(outcomes)
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


# `--only KIND/NAME`: which of the resources in the files take part. Pure.


def select(resources: Sequence[AnyKind], only: Sequence[str]) -> list[AnyKind]:
    """The chosen resources and the tables that they refer to, in their order.

    Dependencies of a chosen operation are neither run nor waited for unless they are chosen, too.

    Raises:
        InvalidSpec: not of the form KIND/NAME.
        ReferenceNotFound: there is no such resource.
    """
    if not only:
        return list(resources)
    wanted = {_parse(text) for text in only}
    for kind, name in sorted(wanted):
        if not any((resource.kind_name, resource.name) == (kind, name) for resource in resources):
            raise ReferenceNotFound(
                "no such resource in the files",
                resource="--only",
                found=f"{kind}/{name}",
                expected="one of " + ", ".join(resource.id for resource in resources),
            )
    chosen = {each.key for each in resources if (each.kind_name, each.name) in wanted}
    for resource in resources:
        if resource.key in chosen and isinstance(resource, Operation):
            chosen.add(("LakeTable", resource.namespace, resource.spec.table_ref.name))
    return [_without_others(resource, chosen) for resource in resources if resource.key in chosen]


def _parse(text: str) -> tuple[str, str]:
    kind, slash, name = text.partition("/")
    if not (kind and slash and name):
        raise InvalidSpec("not a resource", resource="--only", found=text, expected="KIND/NAME")
    return kind, name


def _without_others(resource: AnyKind, chosen: set[tuple[str, str, str]]) -> AnyKind:
    if not isinstance(resource, Operation) or not resource.spec.depends_on:
        return resource
    kept = tuple(
        dependency
        for dependency in resource.spec.depends_on
        if (dependency.kind, resource.namespace, dependency.name) in chosen
    )
    spec = resource.spec.model_copy(update={"depends_on": kept})
    return resource.model_copy(update={"spec": spec})


# `tandem plan` checks that the sources of merges and ingests exist.
#
# The engine leaves that to the job, since an operator may have no permission to read a source, or
# no access to its disk. The jobs of `tandem run` run on this machine, in this environment, so the
# check is valid for them. A source may also be created between the plan and the run, so a missing
# one is a warning, not an error.


_ABSENT = (
    BucketNotFound,
    InvalidSpec,
    ObjectNotFound,
    DataFileMissing,
    TableNotFound,
    VersionNotFound,
)


@dataclass(frozen=True)
class SourceCheck:
    """A summary of a source as it is now, and a warning if there is a problem, which begins with
    the field of the resource."""

    summary: str
    warning: str = ""


def check_sources(outcomes: Sequence[ResourceOutcome]) -> dict[str, SourceCheck]:
    """The sources of all resources that have one and can be planned, by id."""
    tables = {
        (outcome.resource.namespace, outcome.resource.name): outcome.resource
        for outcome in outcomes
        if isinstance(outcome.resource, LakeTable)
    }
    found = {}
    for outcome in outcomes:
        resource = outcome.resource
        if isinstance(resource, LakeTable) or not _to_come(outcome):
            continue
        field, source = resource.source_in(resource.manifest()["spec"])
        table = tables.get((resource.namespace, resource.spec.table_ref.name))
        if source and table is not None:
            found[resource.id] = _look(field, source, table)
    return found


def _to_come(outcome: ResourceOutcome) -> bool:
    """Whether the operation would run now: it has no recorded result, and planning succeeded."""
    status = outcome.status
    reasons = {condition.reason for condition in status.conditions}
    return status.phase is Phase.PENDING or Reason.DRY_RUN in reasons


def _look(field: str, source: Mapping[str, Any], table: LakeTable) -> SourceCheck:
    from tandem.spark.sources.options import storage_options

    location = source["location"]
    try:
        options = storage_options(
            location, table.spec.location or location, table.spec.storage.options
        )
        if source["format"] == "Delta":
            return SourceCheck(_version(location, options, source.get("version")))
        return SourceCheck(_files(location, options, f"{field}.location"))
    except _ABSENT as error:
        return SourceCheck(
            "not there now",
            f"{field}.location: nothing to read at {location}: {error.message}. It would fail if "
            "it ran now; correct the location, or put the source there",
        )
    except UnsupportedFeature as error:
        return SourceCheck("cannot be read", f"{field}.location: {location}: {error.message}")
    except TandemError as error:
        why = f"{field}.location: {location} could not be checked: {error.message}"
        return SourceCheck("could not be checked", why)


def _version(location: str, options: Mapping[str, str], wanted: int | None) -> str:
    from tandem.delta.log.delta_log import DeltaLog
    from tandem.delta.scan import check_rows
    from tandem.storage import open_store

    snapshot = DeltaLog(open_store(location, options)).snapshot(wanted)
    check_rows(snapshot)
    return f"now {snapshot.version}" if wanted is None else file_count(snapshot.num_files)


def _files(location: str, options: Mapping[str, str], field: str) -> str:
    from tandem.spark.runtime.listing import list_source

    files = list_source(location, options, field=field).files
    size = human_bytes(sum(file.size for file in files))
    return f"{file_count(len(files))}, {size}"
