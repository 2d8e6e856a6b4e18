"""Sets of row positions: conversion between roaring bitmaps and numpy arrays, without Python loops.

A caller's bitmap is never modified: every function here returns a new one.
"""

from __future__ import annotations

from array import array

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

Positions = npt.NDArray[np.int64]
EMPTY: Positions = np.empty(0, dtype=np.int64)


def to_array(bitmap: BitMap64) -> Positions:
    """The positions in ascending order."""
    if not bitmap:
        return EMPTY
    return np.frombuffer(bitmap.to_array(), dtype=np.uint64).astype(np.int64)


def to_bitmap(positions: Positions) -> BitMap64:
    """The set of these positions, which must not be negative."""
    if not len(positions):
        return BitMap64()
    return BitMap64(array("Q", positions.astype(np.uint64).tobytes()))


def span(start: int, end: int) -> BitMap64:
    """All positions in `[start, end)`."""
    return BitMap64(range(start, end))


def group_bitmaps(keys: npt.NDArray[np.int32], positions: Positions) -> dict[int, BitMap64]:
    """Split positions by their key: key → set. Negative keys are left out."""
    if not len(keys):
        return {}
    order = np.argsort(keys, kind="stable")
    keys, positions = keys[order], positions[order]
    starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    ends = np.append(starts[1:], len(keys))
    return {
        int(keys[start]): to_bitmap(positions[start:end])
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        if keys[start] >= 0
    }
