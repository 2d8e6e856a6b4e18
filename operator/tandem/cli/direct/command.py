"""Plans, prints or runs what a command asks for, as `tandem plan` and `tandem run` do; also
`tandem maintain`.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import typer

from tandem.cli import plan_report, report
from tandem.cli.commands import tables as commands
from tandem.cli.commands.arguments import OPTION_OF_STORE
from tandem.cli.commands.run import interruptible, plan_resources, print_results, run_resources
from tandem.cli.commands.target import Target, target
from tandem.cli.direct.resources import DirectOperation, resources_of, table_of
from tandem.cli.errors import Exit, add_table_to_errors, is_set, pasteable, say, typed_words
from tandem.cli.output import Output, print_data, print_documents, print_table
from tandem.cli.report import ProgressDisplay, RepeatCommands, locations_of, message_of
from tandem.errors import Reason, ReferenceNotFound
from tandem.remedies import OF_OPERATIONS, OF_STORES
from tandem.spec import AnyResource, LakeTable, Operation, ResourceOutcome, TableStatus, load_all
from tandem.spec.status import Phase

MORE: Final = {Reason.DELETION_VECTORS_DISABLED.value: "--enable-deletion-vectors"}
"""The option that helps, by the reason of a failure."""


@dataclass(frozen=True)
class DirectOptions:
    """What every such command takes. `typed` are its words, for messages."""

    output: Output
    dry_run: bool
    quiet: bool
    verbose: bool
    typed: Sequence[str]


def options(context: typer.Context, output: Output, *, dry_run: bool, quiet: bool) -> DirectOptions:
    """Those of a command, with the flags before it."""
    return DirectOptions(
        output,
        dry_run,
        quiet or is_set(context, "log_json"),
        is_set(context, "verbose"),
        typed_words(context),
    )


def perform(target: Target, word: str, asked: DirectOperation, options: DirectOptions) -> Exit:
    """Do what the command `word` asks for. Raises: InvalidSpec before anything is started."""
    now, token = datetime.now(UTC), secrets.token_hex(2)
    lake, operation = resources = resources_of(word, asked, target, now, token)
    if options.output is Output.YAML:
        print_documents(resources)
        return Exit.OK
    again = pasteable(options.typed)
    commands = RepeatCommands(
        again,
        again,
        wording={**_words_of(word, asked, operation), **words_of_table(lake, target)},
        typed=True,
        locations=locations_of([lake]),
        more=MORE,
    )
    if options.dry_run:
        return plan_resources(
            resources,
            output=options.output,
            commands=commands,
            shown=says_something,
        )
    return run_resources(
        resources,
        output=options.output,
        parallel=1,
        again=False,
        quiet=options.quiet,
        verbose=options.verbose,
        commands=commands,
        shown=says_something,
    )


def _words_of(word: str, asked: DirectOperation, operation: Operation) -> dict[str, str]:
    """How messages name the fields of the operation: by the options that they come from."""
    fields = sorted(asked.options, key=len, reverse=True)
    words = {f"{operation.id}.spec.{field}": asked.options[field] for field in fields}
    words["the table is refused because"] = f"{word} is refused because"
    hidden = (".spec.tableRef: ", ".spec.", ".protocol: ")
    return {**words, **{f"{operation.id}{part}": "" for part in hidden}, **dict(OF_OPERATIONS)}


def words_of_table(lake: LakeTable, target: Target) -> dict[str, str]:
    """How messages name a table's location, an argument unless a file defines the table."""
    if target.table is not None:
        return {}
    return {
        f"{lake.id}.spec.location: ": "",
        f"{lake.id}.protocol: ": "",
        ", or set spec.create": "",
        OPTION_OF_STORE: "--option ",
        **dict(OF_STORES),
    }


def says_something(outcome: ResourceOutcome) -> bool:
    """Whether a result is of the operation, or of a table that has changed or cannot be used. An
    operation whose table cannot be used has nothing to add."""
    status = outcome.status
    if isinstance(status, TableStatus):
        return status.phase is Phase.FAILED or bool(message_of(status))
    return not message_of(status).startswith(Reason.WAITING_FOR_DEPENDENCY)


# `tandem maintain`: what cron or Airflow calls in place of an operator.


_ENDINGS = (".yaml", ".yml", ".json")
_WITHOUT_A_POLICY = DirectOperation("TableCompaction", {"type": "SemiMajor"})


def maintain(
    table: tuple[str, Sequence[str], Sequence[str], Sequence[str]], chosen: DirectOptions
) -> Exit:
    """Do what is due on the tables of a file, or on the table of the arguments of `target`.

    A table without a LakeTable is compacted, and cleaned by its property.
    """
    from tandem.operations import maintain as engine
    from tandem.operations.runner import RunOptions

    location_or_file, files, *_ = table
    codes: list[Exit] = []
    outcomes: list[ResourceOutcome] = []
    wanted: list[AnyResource] = []
    wording: dict[str, str] = {}
    if not files and _is_file(location_or_file):
        tables: list[tuple[LakeTable, Operation | None]] = [
            (table, None) for table in _tables_in(location_or_file)
        ]
    else:
        found = target(*table)
        tables = [_at(found)]
        wording = words_of_table(tables[0][0], found)
    plan_only = chosen.dry_run or chosen.output is Output.YAML
    options = RunOptions(plan_only=plan_only)
    # A plan moves nothing that could be shown.
    progress = ProgressDisplay(quiet=chosen.quiet or plan_only, verbose=chosen.verbose)
    with interruptible() as cancel, progress as display:
        for lake, also in tables:
            with add_table_to_errors(lake.address):
                done = engine.maintain(lake, options, also=also, observer=display, cancel=cancel)
            outcomes += done.outcomes
            wanted += [lake, *(each.resource for each in done.operations)]
            for why in done.waits if not done.operations else ():
                say(f"{lake.id}: nothing is due. {why}")
            if done.cleaned is not None and chosen.output is not Output.YAML:
                if done.cleaned.garbage:
                    say(f"{lake.id}: {commands.clean_summary(done.cleaned, dry_run=plan_only)}")
                codes.append(commands.say_what_else(done.cleaned, dry_run=plan_only))
    if chosen.output is Output.YAML:
        print_documents(wanted)
    elif chosen.output is Output.JSON:
        print_data(report.documents(outcomes), chosen.output)
    else:
        _print(outcomes, chosen, wording)
    codes.append(report.exit_of(outcomes, interrupted=cancel.is_set()))
    return max(codes)


def _print(
    outcomes: Sequence[ResourceOutcome], chosen: DirectOptions, wording: Mapping[str, str]
) -> None:
    shown = [outcome for outcome in outcomes if says_something(outcome)]
    again = pasteable(chosen.typed)
    locations = report.locations_of(outcome.resource for outcome in outcomes)
    commands = RepeatCommands(
        again, again, wording=wording, typed=bool(wording), locations=locations
    )
    if shown and chosen.dry_run:
        print_table(plan_report.blocks(shown, {}, commands))
    elif shown:
        print_results(shown, commands)


def _at(found: Target) -> tuple[LakeTable, Operation | None]:
    """The table of an argument, and what to do if no LakeTable says it."""
    if found.table is not None:
        return table_of(found, "maintain", {}), None
    now, token = datetime.now(UTC), secrets.token_hex(2)
    return resources_of("maintain", _WITHOUT_A_POLICY, found, now, token)


def _is_file(text: str) -> bool:
    if text == "-":
        return True
    path = Path(text)
    return "://" not in text and (
        path.is_file()
        or path.suffix in _ENDINGS
        or (
            path.is_dir()
            and not (path / "_delta_log").is_dir()
            and any(child.suffix in _ENDINGS for child in path.iterdir())
        )
    )


def _tables_in(path: str) -> list[LakeTable]:
    found = load_all([path], references=False)
    tables = [resource for resource in found if isinstance(resource, LakeTable)]
    if not tables:
        raise ReferenceNotFound(
            "no LakeTable in this file",
            resource=path,
            expected="a LakeTable, with spec.compaction or spec.retention",
            remedy="Give the file with the LakeTable, or the location of a table",
        )
    return tables
