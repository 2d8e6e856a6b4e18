"""`tandem clean`: remove files that are no longer needed, or list them with `--dry-run`.

Which files are removed, and when, is decided in `tandem.planning.cleaning` (docs/cleaning.md).
"""

from __future__ import annotations

import posixpath
from collections import Counter
from typing import TYPE_CHECKING

from tandem.cli.commands.tables import Target
from tandem.cli.errors import Exit, say
from tandem.cli.output import ByteSize, Output, print_data, print_table, table_of
from tandem.text import counted, human_bytes

if TYPE_CHECKING:
    from tandem.operations.clean.clean import CleaningResult
    from tandem.planning.cleaning import CleaningRules


_UNITS = ((86_400_000, "day"), (3_600_000, "hour"), (60_000, "minute"), (1_000, "second"))


def clean(target: Target, *, output: Output, dry_run: bool) -> Exit:
    """Clean a table, and its log of blocks if it has one, by the LakeTable's retention if there is
    one, otherwise by the table property."""
    from tandem.operations.clean.block_log import clean_with_log
    from tandem.operations.clean.clean import CleaningOptions, rules_for
    from tandem.operations.model import Table

    log = target.log()
    display = target.table.id if target.table is not None else target.location
    table = Table(log.store, log, display, target.table)
    retention = target.table.spec.retention if target.table is not None else None
    rules = rules_for(log.snapshot().configuration, retention)
    cleaned = clean_with_log(table, rules, options=CleaningOptions(dry_run=dry_run))
    if output is Output.TABLE:
        _show(cleaned, rules, dry_run=dry_run)
    else:
        print_data(
            [
                {
                    "path": each.file.path,
                    "bytes": each.file.size,
                    "reason": each.why.name.title().replace("_", ""),
                    "message": each.why.value,
                    **({"operation": each.file.operation_id} if each.file.operation_id else {}),
                }
                for each in cleaned.garbage
            ],
            output,
        )
    return say_what_else(cleaned, dry_run=dry_run)


def say_what_else(cleaned: CleaningResult, *, dry_run: bool) -> Exit:
    """What a cleaning did beside removing files, on standard error; and how it ended."""
    verb = "would be" if dry_run else "was"
    for operation_id, attempt in cleaned.abandoned:
        attempt_of = f"Attempt {attempt} of operation {operation_id}"
        say(f"{attempt_of} {verb} abandoned: no process works on it.")
    for session, upload in cleaned.rolled_back:
        say(f"Upload {upload} of log writer {session} {verb} rolled back: it was never committed.")
    if cleaned.problem:
        say(f"The log of blocks {'cannot be' if dry_run else 'was not'} cleaned: {cleaned.problem}")
        return Exit.FAILED
    return Exit.OK


def _show(cleaned: CleaningResult, rules: CleaningRules, *, dry_run: bool) -> None:
    from tandem.planning.cleaning import RemovalReason

    if not cleaned.garbage:
        kept = f"{_duration(rules.files_ms)} after a commit removed them" if rules.files_ms else ""
        why = f" Files that older versions refer to are kept until {kept}." if kept else ""
        say(f"Nothing to remove.{why}")
        return
    cells = [
        [each.file.path, each.why.value, ByteSize(each.file.size)]
        for each in cleaned.garbage
        if each.why is not RemovalReason.ARCHIVED
    ]
    archived = [each.file for each in cleaned.garbage if each.why is RemovalReason.ARCHIVED]
    if archived:
        # A log has a version for each instant: not a line for each.
        what = f"{posixpath.dirname(archived[0].path)} ({counted(len(archived), 'file')})"
        size = ByteSize(sum(file.size for file in archived))
        cells.append([what, RemovalReason.ARCHIVED.value, size])
    verb = "would remove" if dry_run else "removed"
    print_table(table_of([verb, "why", "size"], cells))
    say(summary(cleaned, dry_run=dry_run))


def summary(cleaned: CleaningResult, *, dry_run: bool) -> str:
    """`Removed 3 files, 1.2 MiB: 3 …`"""
    from tandem.mergelog.state.log_table import LOG_FOLDER

    verb = "would remove" if dry_run else "removed"
    counts = Counter(each.why.value for each in cleaned.garbage)
    reasons = ", ".join(f"{count} {why}" for why, count in counts.items())
    of_log = sum(each.file.path.startswith(f"{LOG_FOLDER}/") for each in cleaned.garbage)
    return (
        f"{verb.capitalize()} {counted(len(cleaned.garbage), 'file')}, {human_bytes(cleaned.size)}"
        f"{f', {of_log} in the log of blocks' if of_log else ''}"
        f"{': ' if reasons else ''}{reasons}."
    )


def _duration(milliseconds: int) -> str:
    """`7 days`, `90 minutes`: in the largest unit that divides it evenly."""
    for size, name in _UNITS:
        if milliseconds >= size and milliseconds % size == 0:
            return counted(milliseconds // size, name)
    return f"{milliseconds:,} ms"
