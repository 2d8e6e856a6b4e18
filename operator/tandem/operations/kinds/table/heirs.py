"""Heirs of a rewrite's inputs: live files that hold what is left of inputs that are gone.

An edit of ours says by its row map which rows it kept, and which it gave new values; a chain of
edits leads back to the input.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from tandem.operations.kinds.table.commit_history import CommitHistory
from tandem.operations.kinds.table.snapshot_view import SnapshotView
from tandem.reconcile.model import ChangeKind
from tandem.reconcile.rewrite import Heir, HeirRows
from tandem.rowmap.positions import to_array, to_bitmap


class HeirSearch:
    """Finds heirs; keeps those that it has found, since files never change.

    Args:
        history: the commits since the version that the rewrite read, `since`.
    """

    def __init__(self, history: CommitHistory, since: int) -> None:
        self._history = history
        self._since = since
        self._chains: dict[str, Heir | None] = {}

    def of(self, gone: Collection[str], view: SnapshotView) -> tuple[Heir, ...]:
        """The heirs of these inputs at the version of `view`."""
        if not gone:
            return ()
        added: dict[str, None] = {}
        for commit in self._history.since(self._since, view.snapshot):
            if commit.kind is ChangeKind.CHANGE:
                added.update(dict.fromkeys(sorted(commit.added)))
        view.prefetch(added)
        live = [path for path in added if view.add(path) is not None]
        found = (self._by_maps(path, view) for path in live)
        return tuple(h for h in found if h is not None and h.sources[0] in gone)

    def _by_maps(self, path: str, view: SnapshotView) -> Heir | None:
        """The file as an heir of the file that it was edited from first."""
        if path not in self._chains:
            self._chains[path] = self._traced(path, view)
        return self._chains[path]

    def _traced(self, path: str, view: SnapshotView) -> Heir | None:
        state = view.get(path)
        assert state is not None
        rows = np.arange(state.rows, dtype=np.int64)
        origins, source = rows, path
        changed = np.zeros(state.rows, dtype=bool)
        while (row_map := self._history.row_maps.get(source)) is not None:
            sources = row_map.sources(source)
            if len(sources) != 1:
                break  # a file of several ones: not an edit
            values = row_map.changed.get(source)
            if values:
                changed |= np.isin(origins, to_array(values))
            _, origins = row_map.trace(source, origins)
            source = sources[0]
        if source == path:
            return None
        return Heir(path, (HeirRows(source, rows, origins),), to_bitmap(rows[changed]))
