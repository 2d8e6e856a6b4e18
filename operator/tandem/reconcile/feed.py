"""The rule for the change data feed: which change files a commit needs.

| commit | change files |
|---|---|
| rows are hidden by deletion vectors, or leave with whole files; others come in new files | none |
| any row is updated | of all rows that it changes |
| a live file is made again without some of its rows | of all rows that it changes |

Readers derive the changes of a commit without change files from the files that it adds and removes:
an updated row would be a deleted and an inserted one, and each row of a file that is made again
would be both. If there is a change file, they take all changes of the commit from change files.
A rewrite, and an append, never need any. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pyroaring import BitMap64

from tandem.delta.change_feed import ChangeType
from tandem.reconcile.outcomes import ReadyToCommit
from tandem.rowmap.run_table import span, to_bitmap


@dataclass(frozen=True, slots=True)
class ChangedRows:
    """Rows of a file that a commit changes: of a live file those that it takes out, of a new file
    those that it adds."""

    path: str
    rows: BitMap64
    change: ChangeType


def of_statement(agreed: ReadyToCommit) -> Iterator[ChangedRows]:
    """What a statement changes, by files of the version that its commit follows, and by the files
    that hold new values."""
    for path in agreed.deletes:
        found = agreed.matches[path]
        is_updated = found.outputs >= 0
        yield ChangedRows(path, to_bitmap(found.positions[is_updated]), ChangeType.BEFORE)
        yield ChangedRows(path, to_bitmap(found.positions[~is_updated]), ChangeType.DELETE)
    used = frozenset(agreed.inserts)
    for file in agreed.progress.inserts:
        if file.path in used:
            rows = span(0, file.rows) - agreed.masks.get(file.path, BitMap64())
            yield ChangedRows(file.path, rows, ChangeType.AFTER)
    for file in agreed.progress.fresh:
        yield ChangedRows(file.path, span(0, file.rows), ChangeType.INSERT)


def of_rows(by_type: Mapping[ChangeType, Mapping[str, BitMap64]]) -> Iterator[ChangedRows]:
    """Changes of which the rows are known by type and file."""
    for change, files in by_type.items():
        yield from (ChangedRows(path, rows, change) for path, rows in files.items())


def not_derived(changes: Iterable[ChangedRows], *, edited: bool) -> tuple[ChangedRows, ...]:
    """The changes that need change files: all of them, or none.

    Args:
        changes: of the commit.
        edited: whether it makes a live file again.
    """
    found = tuple(each for each in changes if each.rows)
    updates = any(each.change in (ChangeType.BEFORE, ChangeType.AFTER) for each in found)
    return found if updates or edited else ()
