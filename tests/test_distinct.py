"""Rows are numbered as NumPy numbers them along an axis."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tandem.distinct import number_rows

BOUNDS = (-(2**63), 2**63 - 1)
values = st.integers(-2, 2) | st.sampled_from(BOUNDS)
tables = st.integers(1, 3).flatmap(lambda width: st.lists(st.tuples(*[values] * width), min_size=1))


@given(tables)
def test_rows_are_numbered_as_numpy_does(rows: list[tuple[int, ...]]) -> None:
    table = np.array(rows, np.int64)
    _, first, numbers = np.unique(table, axis=0, return_index=True, return_inverse=True)
    found = number_rows([*table.T])
    assert found[0].tolist() == numbers.reshape(-1).tolist()
    assert found[1].tolist() == first.tolist()


def test_no_rows_have_no_numbers() -> None:
    nothing = np.empty(0, np.int64)
    assert [each.tolist() for each in number_rows([nothing, nothing])] == [[], []]
