"""Deletes files of attempts that no commit refers to, and never any others.

The log distinguishes two cases. An attempt that can never commit (it is abandoned, the operation is
closed, or another attempt has committed) loses all of its files. Of a committed attempt, those
files are deleted that its commit does not name: a duplicate of the job wrote them, or they belong
to a round that lost the race for its version.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from tandem.delta import dv
from tandem.delta.actions import Commit
from tandem.operations.attempt import paths
from tandem.storage.store import Store, side_by_side
from tandem.timeline.segments import TAG_ROW_MAP


def clean_dead(
    store: Store, operation_id: str, attempts: Iterable[int], *, parallel: int = 1
) -> None:
    """Delete everything that these attempts wrote, except the records of the claim and of the end.
    The log must show that none of them has committed or ever can. `parallel`: so many requests are
    made at once."""
    for attempt in attempts:
        folders = (
            paths.data(operation_id, attempt),
            paths.deletion_vectors(operation_id, attempt),
            paths.facts(operation_id, attempt),
            paths.rounds(operation_id, attempt),
        )
        work: list[Callable[[], object]] = [partial(store.delete_prefix, each) for each in folders]
        work.append(partial(_delete_row_map, store, paths.row_map(operation_id, attempt)))
        side_by_side(work, parallel)


def _delete_row_map(store: Store, row_map: str) -> None:
    store.delete([row_map])
    store.delete_prefix(row_map)  # temporary files of a killed writer, never the map itself


def clean_unused(
    store: Store, operation_id: str, attempt: int, committed: Commit, *, parallel: int = 1
) -> None:
    """Delete files that the attempt wrote and `committed`, its commit, does not refer to.
    `parallel`: so many requests are made at once."""
    used = {add.path for add in committed.adds}
    used |= {add.tags[TAG_ROW_MAP] for add in committed.adds if TAG_ROW_MAP in add.tags}
    used |= {
        dv.file_path(add.deletion_vector)
        for add in committed.adds
        if add.deletion_vector is not None and add.deletion_vector.storage == "u"
    }
    folders = (
        paths.data(operation_id, attempt),
        paths.deletion_vectors(operation_id, attempt),
        paths.rounds(operation_id, attempt),
    )
    work: list[Callable[[], object]] = [
        partial(store.delete_prefix, folder, keep=used) for folder in folders
    ]
    row_map = paths.row_map(operation_id, attempt)
    if row_map in used:
        work.append(partial(store.delete_prefix, row_map))
    else:
        work.append(partial(_delete_row_map, store, row_map))
    side_by_side(work, parallel)
