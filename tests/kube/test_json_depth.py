"""JSON of any depth is read, and what lies too deep is cut off."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tandem.kube.client.api import CUT, MOST_LEVELS, loads

VALUES = st.recursive(
    st.none() | st.integers() | st.text('ab"\\[]{}\u2028é😀', max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text('k"\\[{', max_size=3), inner)
    ),
    max_leaves=25,
)


def cut(value: Any, levels: int) -> Any:
    if not isinstance(value, dict | list):
        return value
    if not levels:
        return CUT
    if isinstance(value, dict):
        return {key: cut(inner, levels - 1) for key, inner in value.items()}
    return [cut(inner, levels - 1) for inner in value]


@given(VALUES, st.integers(1, 5), st.booleans(), st.sampled_from([None, 1]))
def test_deeper_values_are_cut_off(value: Any, most: int, plain: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=not plain, indent=indent)
    assert loads(text, most) == cut(value, most)
    assert loads(text.encode(), most) == cut(value, most)


@pytest.mark.parametrize("levels", [MOST_LEVELS, MOST_LEVELS + 1, 1_000, 100_000])
@pytest.mark.parametrize("each", [('{"a":', "}"), ("[", "]")])
def test_any_depth_is_read_without_recursion(levels: int, each: tuple[str, str]) -> None:
    opening, closing = each
    found = loads(opening * levels + "1" + closing * levels)
    for _ in range(MOST_LEVELS):
        [found] = found.values() if isinstance(found, dict) else found
    assert found == (1 if levels == MOST_LEVELS else CUT)


@pytest.mark.parametrize("text", ["", "{", "[1", '{"a": "', "]", "[" * 2_000, "]" * 2_000])
def test_what_is_no_json_is_refused(text: str) -> None:
    with pytest.raises(json.JSONDecodeError):
        loads(text)
