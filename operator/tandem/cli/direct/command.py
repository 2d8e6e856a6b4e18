"""Plans, prints or runs what a command asks for, as `tandem plan` and `tandem run` do."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import typer

from tandem.cli.commands.arguments import WORDS_OF_OPTIONS
from tandem.cli.commands.run import plan_resources, run_resources
from tandem.cli.commands.tables import Target
from tandem.cli.direct.resources import DirectOperation, manifests, resources_of
from tandem.cli.errors import Exit, is_set, pasteable, typed_words
from tandem.cli.output import Output, print_documents
from tandem.cli.report import RepeatCommands, locations_of, message_of
from tandem.errors import Reason
from tandem.spec import LakeTable, Operation, ResourceOutcome, TableStatus
from tandem.spec.status import Phase

_OF_A_RESOURCE: Final = "Fix the resource and run again"
WORDING: Final = {
    "Set enableDeletionVectors: true in the LakeTable": "Add --enable-deletion-vectors",
    "After that, `": "`",
    _OF_A_RESOURCE: "Correct the command",
    'set header: "true"': "add --source-option header=true",
    'if not, header: "false"': "if not, add --source-option header=false",
    "or another one that options.encoding of the source names": "or --source-option encoding=…",
    "correct the options header and sep": "correct --source-option header=… and sep=…",
}
"""What the engine says of a resource, and what those who typed a command read instead."""
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


def perform(target: Target, asked: DirectOperation, options: DirectOptions) -> Exit:
    """Do what was asked for. Raises: InvalidSpec before anything is started."""
    now, token = datetime.now(UTC), secrets.token_hex(2)
    lake, operation = resources = resources_of(asked, target, now, token)
    if options.output is Output.YAML:
        print_documents(manifests(resources))
        return Exit.OK
    again = pasteable(options.typed)
    commands = RepeatCommands(
        again,
        again,
        wording={**_words_of(asked, operation), **words_of_table(lake, target), **WORDING},
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


def _words_of(asked: DirectOperation, operation: Operation) -> dict[str, str]:
    """How messages name the fields of the operation: by the options that they come from."""
    fields = sorted(asked.options, key=len, reverse=True)
    words = {f"{operation.id}.{field}": asked.options[field] for field in fields}
    words["the table is refused because"] = f"{asked.word} is refused because"
    hidden = (".spec.tableRef: ", ".spec.", ".protocol: ")
    return {**words, **{f"{operation.id}{part}": "" for part in hidden}}


def words_of_table(lake: LakeTable, target: Target) -> dict[str, str]:
    """How messages name a table's location, an argument unless a file defines the table."""
    if target.table is not None:
        return {}
    return {
        f"{lake.id}.spec.location: ": "",
        f"{lake.id}.protocol: ": "",
        ", or set spec.create": "",
        _OF_A_RESOURCE: WORDING[_OF_A_RESOURCE],
        **WORDS_OF_OPTIONS,
    }


def says_something(outcome: ResourceOutcome) -> bool:
    """Whether a result is of the operation, or of a table that has changed or cannot be used. An
    operation whose table cannot be used has nothing to add."""
    status = outcome.status
    if isinstance(status, TableStatus):
        return status.phase is Phase.FAILED or bool(message_of(status))
    return not message_of(status).startswith(Reason.WAITING_FOR_DEPENDENCY)
