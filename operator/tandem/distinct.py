"""Distinct combinations of values in NumPy columns. Must not know what the columns mean."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]


def number_rows(columns: Sequence[IntArray]) -> tuple[IntArray, IntArray]:
    """Number the rows of one or more columns of equal length; equal rows get equal numbers.

    As `np.unique(axis=0)`, but several times as fast, since it sorts numbers instead of rows.

    Returns: the number of each row, from 0 in ascending order of the rows; the index of the first
    row of each number.
    """
    _, first, numbers = np.unique(columns[0], return_index=True, return_inverse=True)
    for column in columns[1:]:
        values, codes = np.unique(column, return_inverse=True)
        # Both factors are at most the number of rows, so that the product does not overflow.
        pairs = numbers.astype(np.int64) * len(values) + codes
        _, first, numbers = np.unique(pairs, return_index=True, return_inverse=True)
    return numbers.astype(np.int64), first.astype(np.int64)
