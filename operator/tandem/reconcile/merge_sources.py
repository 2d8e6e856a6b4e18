"""The source rows that a merge matched, to decide whether its inserts are still right.

A source row is identified by its content: two hashes, the same in every round since the source is
pinned (`tandem.spark.sources.row_hash`). Rows of equal content count as one: they match the same
rows, and a row of the table that two of them match has no record at all.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tandem.distinct import number_rows
from tandem.reconcile.matches import KEPT, FileMatches, Matches

Sources = npt.NDArray[np.int64]
"""Distinct source rows, ascending: shape (rows, 2)."""


def matched_sources(matches: Matches) -> Sources:
    """The source rows that match some row, whichever clause applied to it."""
    none = np.empty((0, 2), dtype=np.int64)
    found = np.concatenate([none, *(f.sources for f in matches.values() if f.sources is not None)])
    found = found[found.any(axis=1)]
    found = found[np.argsort(found[:, 0])]
    equal = found[1:, 0] == found[:-1, 0]
    if (equal & (found[1:, 1] != found[:-1, 1])).any():
        # Only if two contents share the first hash: sorting by both takes ten times as long.
        found = found[np.lexsort((found[:, 1], found[:, 0]))]
    first = np.ones(len(found), dtype=bool)
    first[1:] = (found[1:] != found[:-1]).any(axis=1)
    distinct: Sources = found[first]
    return distinct


def unmatched_sources(identities: Sources, matched: Sources) -> npt.NDArray[np.int64]:
    """The indexes of the source rows, in any order and perhaps repeated, that match no row."""
    numbers, _ = number_rows([*np.concatenate([identities, matched]).T])
    known = np.isin(numbers[: len(identities)], numbers[len(identities) :])
    return np.flatnonzero(~known).astype(np.int64)


def same_sources(a: Sources, b: Sources) -> bool:
    return bool(np.array_equal(a, b))


def without_unchanged_rows(matches: Matches) -> Mapping[str, FileMatches]:
    """The matches without rows that matched and stay unchanged."""
    found = {}
    for path, of_file in matches.items():
        indexes = np.flatnonzero(of_file.outputs != KEPT)
        if len(indexes) == len(of_file):
            found[path] = of_file
        elif len(indexes):
            found[path] = of_file.only(indexes)
    return found
