"""`tandem maintain`: what cron or Airflow calls in place of an operator."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from tandem.cli import engine, plan_report, report
from tandem.cli.commands import clean
from tandem.cli.commands.run import interruptible, print_results
from tandem.cli.commands.tables import Target, target
from tandem.cli.direct.command import DirectOptions, says_something, words_of_table
from tandem.cli.direct.resources import DirectOperation, manifests, resources_of, table_of
from tandem.cli.errors import Exit, add_table_to_errors, pasteable, say
from tandem.cli.output import Output, print_data, print_documents, print_table
from tandem.cli.progress import ProgressDisplay
from tandem.cli.report import RepeatCommands
from tandem.errors import ReferenceNotFound
from tandem.spec import AnyResource, LakeTable, Operation, ResourceOutcome, load_all

_ENDINGS = (".yaml", ".yml", ".json")
_WITHOUT_A_POLICY = DirectOperation("maintain", "TableCompaction", {"type": "SemiMajor"}, {})


def maintain(
    table: tuple[str, Sequence[str], Sequence[str], Sequence[str]], chosen: DirectOptions
) -> Exit:
    """Do what is due on the tables of a file, or on the table of the arguments of `target`.

    A table without a LakeTable is compacted, and cleaned by its property.
    """
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
    # A plan moves nothing that could be shown.
    progress = ProgressDisplay(quiet=chosen.quiet or plan_only, verbose=chosen.verbose)
    with interruptible() as cancel, progress as display:
        for lake, also in tables:
            with add_table_to_errors(lake.spec.location):
                done = engine.maintain(
                    lake, also=also, plan_only=plan_only, observer=display, cancel=cancel
                )
            outcomes += done.outcomes
            wanted += [lake, *(each.resource for each in done.operations)]
            for why in done.waits if not done.operations else ():
                say(f"{lake.id}: nothing is due. {why}")
            if done.cleaned is not None and chosen.output is not Output.YAML:
                if done.cleaned.garbage:
                    say(f"{lake.id}: {clean.summary(done.cleaned, dry_run=plan_only)}")
                codes.append(clean.say_what_else(done.cleaned, dry_run=plan_only))
    if chosen.output is Output.YAML:
        print_documents(manifests(wanted))
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
    commands = RepeatCommands(again, again, wording=wording, locations=locations)
    if shown and chosen.dry_run:
        print_table(plan_report.blocks(shown, {}, commands))
    elif shown:
        print_results(shown, commands)


def _at(found: Target) -> tuple[LakeTable, Operation | None]:
    """The table of an argument, and what to do if no LakeTable says it."""
    if found.table is not None:
        return table_of(found, "maintain", {}), None
    now, token = datetime.now(UTC), secrets.token_hex(2)
    return resources_of(_WITHOUT_A_POLICY, found, now, token)


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
