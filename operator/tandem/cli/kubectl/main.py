"""The commands of `kubectl tandem`, their options and their help.

Completions of names on the command line are read from the cluster while the user types. They never
fail: on an error there are no suggestions.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import typer

from tandem.cli.commands.arguments import argument, option, parsed
from tandem.cli.errors import Exit
from tandem.cli.kubectl.arguments import (
    Flags,
    connected,
    kind_of,
    parse_resource,
    parse_table,
    short_name,
)
from tandem.cli.output import Output, OutputOption, prepare_streams

_PATIENCE = "2s"


def tables(typed: typer.Context, incomplete: str) -> list[str]:
    """LakeTables of the namespace."""
    return [name for name in _names(typed, "LakeTable") if name.startswith(incomplete)]


def operations(typed: typer.Context, incomplete: str) -> list[str]:
    """`tcomp/`, and then the names of existing operations."""
    from tandem.errors import InvalidSpec
    from tandem.spec.common import OPERATIONS

    word, slash, _ = incomplete.partition("/")
    if not slash:
        words = [word_ for kind in sorted(OPERATIONS) for word_ in (kind, short_name(kind))]
        return [f"{word_}/" for word_ in words if word_.startswith(word)]
    try:
        kind = kind_of(word)
    except InvalidSpec:
        return []
    found = [f"{word}/{name}" for name in _names(typed, kind)]
    return [name for name in found if name.startswith(incomplete)]


def _names(typed: typer.Context, kind: str) -> list[str]:
    from tandem.cli.kubectl import access
    from tandem.errors import TandemError
    from tandem.kube.client.resources import path

    async def work(user: access.Access) -> list[str]:
        found = await user.list(path(kind, user.namespace))
        return sorted(str(item["metadata"]["name"]) for item in found)

    try:
        return access.run(_flags(typed), work)
    except TandemError:
        return []


def _flags(typed: typer.Context) -> Flags:
    """The flags typed so far, before and after the command."""
    known = {field.name for field in fields(Flags)}
    levels: list[dict[str, Any]] = [typed.params]
    if typed.parent is not None:
        levels.append(typed.parent.params)
    flags = Flags()
    for level in levels:
        given = {k: v for k, v in level.items() if k in known and v is not None}
        if "as_groups" in given:
            given["as_groups"] = tuple(given["as_groups"])
        flags = flags.with_defaults(Flags(**given))
    return flags.with_defaults(Flags(request_timeout=_PATIENCE))


_HELP = """Inspect and control Tandem's operations on Delta Lake tables.

Calls only the API server, with your permissions. For reading, the role `view` on Tandem's kinds
and on events is enough; a note says what you may not see. Kinds may be shortened: tcomp/nightly.

\b
Begin with
  kubectl tandem status            all tables of the namespace, problems first
  kubectl tandem status TABLE -w   one table, updated continuously
  kubectl tandem plan -f FILE      what an operation would do
  kubectl tandem report > it.tgz   a bundle for a bug report, without secrets
"""

app = typer.Typer(
    name="kubectl tandem",
    help=_HELP,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
)

TABLE = argument(None, "TABLE", "Only this LakeTable.", autocompletion=tables)
OPERATION = argument(
    ...,
    "KIND/NAME",
    "An operation, as in TableCompaction/nightly.",
    autocompletion=operations,
)
TIMEOUT = option(None, "Timeout: 30s, 10m.", metavar="DURATION")


def _seconds(flag: str, text: str | None) -> float | None:
    from tandem.spec.fields import parse_duration

    return None if text is None else parsed(parse_duration, text, flag) / 1000


@app.callback()
@connected(root=True)
def common(_: Flags) -> Exit:
    raise AssertionError("options before the command are kept for it")


@app.command()
@connected(everywhere=True)
def status(
    flags: Flags,
    *,
    name: str | None = TABLE,
    output: OutputOption = Output.TABLE,
    watch: bool = option(False, "Update it as it changes, until Ctrl-C.", "-w", "--watch"),
) -> Exit:
    """Show the state of tables, problems first.

    Problems with what to do about them; for each table its size, the running and waiting
    operations, the next automatic compaction, and the operations that ended last.
    """
    from tandem.cli.kubectl import access, commands

    return access.run(flags, commands.status, parse_table(name), output=output, watch=watch)


@app.command()
@connected()
def plan(
    flags: Flags,
    *,
    resources: list[str] | None = argument(
        None,
        "KIND/NAME",
        "An existing resource; also a LakeTable.",
        autocompletion=operations,
    ),
    files: list[str] | None = option(
        None,
        "File or folder of operations, or - for standard input; repeatable.",
        "-f",
        "--filename",
    ),
    output: OutputOption = Output.TABLE,
    wait: str = option("60s", "Timeout for the plan.", metavar="DURATION"),
) -> Exit:
    """Show what operations would do; change nothing.

    Shows what they would read, write and cost now, and the operations that they would wait for.

    A copy with spec.dryRun is created, awaited and deleted again, which needs the permission to
    create and delete such operations. For a LakeTable: what automatic compaction does next.

    Exit code: 0 all can be done, 1 some would fail or were not planned in time, 2 the input is
    wrong, 130 interrupted.
    """
    from tandem.cli.kubectl import plan as plan_

    return plan_.plan(
        flags,
        files or [],
        resources or [],
        output=output,
        wait_s=_seconds("--wait", wait) or 0.0,
    )


@app.command()
@connected(everywhere=True)
def locks(flags: Flags, *, name: str | None = TABLE, output: OutputOption = Output.TABLE) -> Exit:
    """Show which operations hold segments, and which wait for them."""
    from tandem.cli.kubectl import access, commands

    return access.run(flags, commands.locks, parse_table(name), output=output)


@app.command()
@connected()
def history(
    flags: Flags,
    *,
    name: str = argument(..., "TABLE", "A LakeTable.", autocompletion=tables),
    output: OutputOption = Output.TABLE,
    limit: int = option(30, "Maximum number of lines.", min=1),
) -> Exit:
    """Show what happened on a table, newest first.

    Lists operations and events that the cluster still has. Commits of other writers are in the
    table's log: `tandem history LOCATION`.
    """
    from tandem.cli.kubectl import access, commands

    table = parse_table(name) or name
    return access.run(flags, commands.history, table, output=output, limit=limit)


@app.command()
@connected(everywhere=True)
def report(
    flags: Flags,
    *,
    name: str | None = TABLE,
    file: Path | None = option(
        None, "Output file, instead of standard output.", "-f", "--filename"
    ),
    redact_statements: bool = option(False, "Remove statements and conditions, too."),
    log_lines: int = option(500, "Lines from the end of each log; 0: no logs.", min=0),
) -> Exit:
    """Write a bundle for a bug report.

    A tar.gz of resources, events, jobs, states of pods, logs and metrics, as far as you may
    read them. Secrets are never read; values that may contain one are removed. Its manifest.json
    lists what is in it, and what is missing and why. Check the bundle before you send it.
    """
    from tandem.cli.kubectl import report as report_

    return report_.report(
        flags,
        parse_table(name),
        file=file,
        redact_statements=redact_statements,
        log_lines=log_lines,
    )


@app.command()
@connected()
def retry(
    flags: Flags,
    *,
    resource: str = OPERATION,
    wait: bool = option(False, "Wait until it has ended."),
    timeout: str | None = TIMEOUT,
) -> Exit:
    """Run a failed operation once more."""
    from tandem.cli.kubectl import access, commands

    found, timeout_s = parse_resource(resource, tables=False), _seconds("--timeout", timeout)
    return access.run(flags, commands.retry, found, wait=wait, timeout_s=timeout_s)


@app.command()
@connected()
def suspend(flags: Flags, *, resource: str = OPERATION) -> Exit:
    """Suspend an operation.

    Its job ends, and none of its changes becomes visible.
    """
    from tandem.cli.kubectl import access, commands

    return access.run(flags, commands.suspend, parse_resource(resource), wanted=True)


@app.command()
@connected()
def resume(flags: Flags, *, resource: str = OPERATION) -> Exit:
    """Resume a suspended operation.

    Its job starts again.
    """
    from tandem.cli.kubectl import access, commands

    return access.run(flags, commands.suspend, parse_resource(resource), wanted=False)


@app.command()
@connected()
def wait(flags: Flags, *, resource: str = OPERATION, timeout: str | None = TIMEOUT) -> Exit:
    """Wait until an operation has ended.

    It also returns after a failure, unlike `kubectl wait --for=condition=Succeeded`.

    Exit code: 0 it succeeded, 1 it failed or has not ended in time.
    """
    from tandem.cli.kubectl import access, commands

    found, timeout_s = parse_resource(resource, tables=False), _seconds("--timeout", timeout)
    return access.run(flags, commands.wait, found, timeout_s=timeout_s)


@app.command()
@connected()
def version(flags: Flags, *, output: OutputOption = Output.TABLE) -> Exit:
    """Show the versions of plugin, operator and kinds."""
    from tandem.cli.kubectl import access, commands

    return access.run(flags, commands.version, output=output)


def main() -> None:
    """The entry point of the `kubectl-tandem` script, which kubectl finds by its name."""
    prepare_streams()
    app(prog_name="kubectl tandem")


if __name__ == "__main__":
    main()
