"""Random expressions, as people might type them: the source of the differential tests.

A text of a wanted type is built from texts of the types that it takes, with parentheses left
out at random. So some texts come out with another structure or type than they were built
with, which is what the tests want: our reading of a text must be Spark's, whatever it is.
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

Texts = SearchStrategy[str]

_GRAMMAR = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
LEAVES: dict[str, list[str]] = _GRAMMAR["leaves"]
CHOICES: dict[str, list[str]] = _GRAMMAR["choices"]
ANY_KIND: list[str] = _GRAMMAR["any_kind"]
TEMPLATES: dict[str, list[str]] = _GRAMMAR["templates"]
TEMPLATES["number"] = TEMPLATES["int"]
_PLACE = re.compile(r"\{(\w+)\}")


@st.composite
def texts(draw: st.DrawFn, kind: str, depth: int = 3) -> str:
    """An expression, usually of the kind asked for."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        return draw(st.sampled_from(LEAVES[kind]))
    template = draw(st.sampled_from(TEMPLATES[kind] * 2 + ANY_KIND))

    def fill(match: re.Match[str]) -> str:
        name = match[1]
        if name in CHOICES:
            return _PLACE.sub(fill, draw(st.sampled_from(CHOICES[name])))
        text = draw(texts(kind if name == "same" else name, depth - 1))
        return f"({text})" if draw(st.booleans()) else text

    return _PLACE.sub(fill, template)
