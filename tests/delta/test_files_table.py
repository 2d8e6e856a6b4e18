"""The table of live files: what it says of a tag, beside Arrow's own lookup,
and how its chunks are merged."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from tandem.delta.log import files

KEYS = st.sampled_from(["", "a", "tandem.a", "b"])
ENTRIES = st.lists(st.tuples(KEYS, st.one_of(st.none(), KEYS)), max_size=4)
SIZES = st.lists(st.one_of(st.integers(0, 5), st.integers(4_000, 9_000)), max_size=30)
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


@given(SIZES, st.data())
def test_chunks_stay_few_whatever_is_appended_and_taken_away(
    sizes: list[int], data: st.DataObject
) -> None:
    table, number = pa.table({"n": pa.array([], pa.int64())}), 0
    for size in sizes:
        if table.num_rows and data.draw(st.booleans()):
            modulus = data.draw(st.integers(2, 5))
            kept = [n % modulus != 0 for n in table["n"].to_pylist()]
            table = table.filter(pa.array(kept, pa.bool_()))
        rows = table["n"].to_pylist() + list(range(number, number + size))
        new = pa.array(rows[len(rows) - size :], pa.int64())
        table = files.combine([table, pa.table({"n": new})])
        number += size
        assert table["n"].to_pylist() == rows
        table.validate(full=True)


def test_a_log_of_single_appends_has_few_chunks() -> None:
    table = pa.table({"n": pa.array(range(10_000))})
    for number in range(5_000):
        table = files.combine([table, pa.table({"n": [number]})])
        assert table["n"].num_chunks < 2 + 13
    assert table["n"].to_pylist() == [*range(10_000), *range(5_000)]
