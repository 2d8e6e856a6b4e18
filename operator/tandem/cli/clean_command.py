"""`tandem clean`: what attempts that were abandoned in the log left behind.

Only what can never be committed any more goes: the log itself says so (decision: an attempt
whose abandonment is committed publishes nothing). Attempts that did not end, and files past the
table's retention, are left alone; the latter come with a later issue.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tandem.cli.exits import Exit, say
from tandem.cli.output import Output, Size, print_data, print_table, table_of
from tandem.cli.tables import Target

if TYPE_CHECKING:
    from tandem.delta.snapshot import Snapshot
    from tandem.storage.store import ObjectMeta, Store


def clean(table: Target, *, output: Output, dry_run: bool) -> Exit:
    """Remove, or with `dry_run` list, the files of abandoned attempts."""
    from tandem.operations.cleaning import clean_abandoned

    log = table.log()
    snapshot = log.snapshot()
    found: list[tuple[str, ObjectMeta]] = []
    for operation, attempt in abandoned(snapshot):
        files = list(left_behind(log.store, operation, attempt))
        if files and not dry_run:
            clean_abandoned(log.store, operation, attempt)
        found += [(operation, meta) for meta in files]
    if output is Output.TABLE:
        cells = [[operation, meta.path, Size(meta.size)] for operation, meta in found]
        verb = "would remove" if dry_run else "removed"
        print_table(table_of(["operation", verb, "size"], cells))
    else:
        print_data(
            [
                {"operation": operation, "path": meta.path, "bytes": meta.size}
                for operation, meta in found
            ],
            output,
        )
    say(
        "Only abandoned attempts are cleaned; files past the table's retention are not yet "
        "(use your engine's VACUUM for those)."
    )
    return Exit.OK


def abandoned(snapshot: Snapshot) -> Iterator[tuple[str, int]]:
    """Operation and highest abandoned attempt, as the log shows them. An operation that shows
    a success by an attempt that is abandoned too contradicts itself: it is left alone."""
    from tandem.operations import layout

    suffix = layout.abandoned_app("")
    prefix = layout.success_app("")
    ending = suffix.removeprefix(prefix)
    for app, txn in sorted(snapshot.txns.items()):
        if not (app.startswith(prefix) and app.endswith(ending)):
            continue
        operation = app.removeprefix(prefix).removesuffix(ending)
        success = snapshot.txns.get(layout.success_app(operation))
        if success is None or success.version > txn.version:
            yield operation, txn.version


def left_behind(store: Store, operation: str, up_to: int) -> Iterator[ObjectMeta]:
    """The data, deletion vectors, row maps and rounds of attempts 1 to `up_to`."""
    from tandem.errors import ObjectNotFound
    from tandem.operations import layout

    for attempt in range(1, up_to + 1):
        for folder in (
            layout.data(operation, attempt),
            layout.deletion_vectors(operation, attempt),
            layout.rounds(operation, attempt),
        ):
            yield from store.list(folder)
        try:
            yield store.head(layout.row_map(operation, attempt))
        except ObjectNotFound:
            continue  # most attempts have none
