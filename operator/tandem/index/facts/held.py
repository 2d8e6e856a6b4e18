"""Facts that are held, within a limit of memory. Pure; not thread-safe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from tandem.distinct import BoolArray, IntArray
from tandem.index.facts.model import UNKNOWN, FileFacts, concat
from tandem.index.facts.narrow import RowGroups

_CELL: Final = 40
"""Bytes of a column in a row group at least: two bounds, three numbers."""
_SHARES: Final = (0.75, 0.5, 0.25, 0.0)
"""What is kept of the limit once it is exceeded: less, until it fits."""


class HeldFacts:
    """The facts of files.

    Args:
        limit: bytes at most. `add` and `fit` keep it; columns that a condition has decoded since
            then come on top.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._question = 0
        self._used: IntArray = np.zeros(0, np.int64)
        """By file, the last question that needed it."""
        self._gave_up = False
        self.groups: RowGroups | None = None

    @property
    def nbytes(self) -> int:
        """Bytes that are held."""
        return self._used.nbytes + (0 if self.groups is None else self.groups.nbytes)

    def drop(self) -> None:
        """Hold nothing."""
        self.groups, self._used, self._gave_up = None, np.zeros(0, np.int64), False

    def has(self, paths: pa.Array) -> BoolArray:
        """Which files have facts, right or not."""
        if self.groups is None:
            return np.zeros(len(paths), bool)
        found: BoolArray = self.groups.facts.index_of(paths) != UNKNOWN
        return found

    @property
    def has_room(self) -> bool:
        """Whether nothing had to be given up yet."""
        return not self._gave_up

    def at(self, paths: pa.Array, sizes: IntArray, rows: IntArray) -> IntArray:
        """For each file the index of its facts, as `FileFacts.believed`."""
        if self.groups is None:
            return np.full(len(paths), UNKNOWN)
        return self.groups.facts.believed(paths, sizes, rows)

    def needed(self, at: IntArray) -> IntArray:
        """The same indexes, of the files of a question."""
        self._question += 1
        self._used[at[at != UNKNOWN]] = self._question
        return at

    def add(self, new: Sequence[FileFacts]) -> bool:
        """Hold more facts; of two files of one name the later one is there. False if some do not
        fit beside those that the last question needed."""
        chosen = self._that_fit(new)
        needed = self._needed()
        if chosen:
            paths = pa.concat_arrays([facts.paths for facts in chosen])
            last = _last_of_each(paths)
            added = concat(chosen)
            if len(last) < len(paths):
                added = added.take(last)
            needed += len(added)
            parts, used = [added], [np.full(len(added), self._question)]
            if self.groups is not None:
                known = self.groups.facts
                others = np.flatnonzero(added.index_of(known.paths) == UNKNOWN)
                fitting = self._with_room(known, others, added)
                self._gave_up |= len(fitting) < len(others)
                others = fitting
                parts.insert(0, known.take(others))
                used.insert(0, self._used[others])
            self._hold(concat(parts), np.concatenate(used))
        self._gave_up |= len(chosen) < len(new)
        self.fit()
        return len(chosen) == len(new) and self._needed() == needed

    def _needed(self) -> int:
        """How many files the last question needs."""
        return int((self._used == self._question).sum())

    def fit(self) -> bool:
        """Keep the limit: facts that were used least recently go. Whether some did."""
        before = len(self._used)
        for share in _SHARES:
            if self.groups is None or self.nbytes <= self._limit:
                break
            facts = self.groups.facts
            newest = np.argsort(-self._used, kind="stable")
            # A file has its share of the bytes by its row groups.
            bytes_ = facts.nbytes * np.cumsum(facts.groups[newest] + 1) / (facts.groups + 1).sum()
            keep = np.sort(newest[bytes_ <= share * self._limit])
            self._hold(facts.take(keep), self._used[keep])
        gave_up = len(self._used) < before
        self._gave_up |= gave_up
        return gave_up

    def _hold(self, facts: FileFacts, used: IntArray) -> None:
        self.groups, self._used = RowGroups(facts) if len(facts) else None, used

    def _that_fit(self, new: Sequence[FileFacts]) -> list[FileFacts]:
        """The first of them, as long as their columns times their row groups fit: facts of files
        that have nothing in common take much more together than each alone."""
        chosen: list[FileFacts] = []
        keys: set[object] = set()
        groups = 0
        for facts in new:
            keys |= facts.columns.keys()
            groups += len(facts.group_rows)
            if len(keys) * groups * _CELL > self._limit:
                break
            chosen.append(facts)
        return chosen

    def _with_room(self, known: FileFacts, files: IntArray, added: FileFacts) -> IntArray:
        """Those of the known files that can be held together with new ones, newest first."""
        columns = max(len(known.columns.keys() | added.columns.keys()), 1)
        room = self._limit // (columns * _CELL) - len(added.group_rows)
        newest = files[np.argsort(-self._used[files], kind="stable")]
        return np.sort(newest[np.cumsum(known.groups[newest]) <= room])


def _last_of_each(paths: pa.Array) -> IntArray:
    """The last place of each path, in order."""
    encoded = paths.dictionary_encode()
    codes = np.asarray(encoded.indices)
    last = np.zeros(len(encoded.dictionary), np.int64)
    last[codes] = np.arange(len(codes))
    return np.sort(last)
