"""Names of all files at once are those of `names`, one by one."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from tandem.timeline.names import foreign_name, foreign_names, levels_of, name_files, parse_name

TAGS = (
    st.none() | st.text(max_size=8) | st.from_regex(r"\A(f-[0-9a-f]{12}|\d{1,3}(\.\d{1,2})?)\n?\Z")
)
PATHS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@given(st.lists(PATHS))
def test_foreign_names(paths: list[str]) -> None:
    assert foreign_names(pa.array(paths, pa.string())).to_pylist() == list(map(foreign_name, paths))


@given(st.lists(TAGS))
def test_levels(texts: list[str | None]) -> None:
    parsed = [parse_name(text) if text is not None else None for text in texts]
    levels = [name.level if name is not None else -1 for name in parsed]
    assert levels_of(pa.array(texts, pa.string())).tolist() == levels


@given(st.lists(st.tuples(TAGS, PATHS)))
def test_files_have_the_names_in_their_tags_or_those_of_their_paths(
    files: list[tuple[str | None, str]],
) -> None:
    tags, paths = (pa.array([each[at] for each in files], pa.string()) for at in (0, 1))

    codes, names, levels = name_files(tags, paths)

    parsed = [parse_name(tag) if tag is not None else None for tag, _ in files]
    found = names.take(codes).to_pylist()
    assert found == [names[code] for code in codes.tolist()]
    assert found == [
        name.text if name is not None else foreign_name(path)
        for name, (_, path) in zip(parsed, files, strict=True)
    ]
    assert levels.tolist() == [name.level if name is not None else 0 for name in parsed]
    # Of some codes, in another order; and by name.
    last = codes[::-2]
    ordered = names.ordered(last)
    assert ordered.take(np.arange(len(last))).to_pylist() == found[::-2]
    for wanted in (set(found[:1]), set(found[-2:]), {"f-0123456789ab", "7"}):
        assert ordered.among(wanted).tolist() == [name in wanted for name in found[::-2]]
