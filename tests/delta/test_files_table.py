"""The table of live files: what it says of a tag, beside Arrow's own lookup."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from tandem.delta.log import files

KEYS = st.sampled_from(["", "a", "tandem.a", "b"])
ENTRIES = st.lists(st.tuples(KEYS, st.one_of(st.none(), KEYS)), max_size=4)
BATCHES = st.lists(st.lists(st.one_of(st.none(), ENTRIES), max_size=5), max_size=3)


@given(BATCHES, KEYS, st.integers(0, 4), st.integers(0, 9))
def test_tags_are_those_of_a_map_lookup(
    batches: list[list[list[tuple[str, str | None]] | None]], key: str, start: int, count: int
) -> None:
    """With keys that occur twice, as no writer of ours makes them, and in a part of a table."""
    column = pa.chunked_array([pa.array(each, files.STRINGS) for each in batches], files.STRINGS)
    table = pa.table({"tags": column})
    for part in (table, table.slice(start, count)):
        expected = pc.map_lookup(part["tags"], key, "first").combine_chunks()
        assert files.tag(part, key).equals(expected)
