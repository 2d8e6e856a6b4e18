"""Columns of every type, with extreme values and odd names, as keys, ordering column, partition
columns and anything else: what the services of a log do changes no value."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from mergelog.lake import made
from mergelog.services import assert_services_change_nothing
from support.some import few
from support.values.kinds import KINDS, Kind

PLAIN = [kind for kind in KINDS if not pa.types.is_struct(kind.arrow)]
KEYS = [kind for kind in PLAIN if not pa.types.is_floating(kind.arrow)]
NAMES = [
    *("id", "a b", "a.b", ".a", "[0]", "ü😀", 'it\'s "quoted"', "`tick`", "UPPER", "%41", "k=v"),
    *("#", "_tandem", "a/b", "$", "*", "s.c d"),
]


@dataclass(frozen=True)
class Columns:
    """`names` and `kinds` correspond; the first are the keys, then comes the ordering column."""

    names: tuple[str, ...]
    kinds: tuple[Kind, ...]
    keys: int
    ordered: bool
    partitions: tuple[str, ...]

    @property
    def deciding(self) -> list[str]:
        return list(self.names[: self.keys + self.ordered])

    def table(self, rows: list[tuple[Any, ...]]) -> pa.Table:
        columns = zip(*rows, strict=True) if rows else [()] * len(self.names)
        arrays = [kind.array(values) for kind, values in zip(self.kinds, columns, strict=True)]
        return pa.table(arrays, list(self.names))


@st.composite
def columns(draw: st.DrawFn) -> Columns:
    keys = draw(st.lists(st.sampled_from(KEYS), min_size=1, max_size=2))
    ordering = draw(st.lists(st.sampled_from(PLAIN), max_size=1))
    others = draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=2))
    kinds = (*keys, *ordering, *others)
    names = draw(st.permutations(NAMES))[: len(kinds)]
    plain = [n for n, kind in zip(names, kinds, strict=True) if kind in PLAIN]
    # A table has a column in its files, too.
    partitions = (
        draw(st.lists(st.sampled_from(plain), unique=True, max_size=len(kinds) - 1))
        if plain
        else []
    )
    return Columns(tuple(names), kinds, len(keys), bool(ordering), tuple(partitions))


def storable(kind: Kind, value: Any) -> bool:
    if kind.name == "text":
        return bool(value)
    if kind.name == "bytes":
        return bool(value) and value.decode(errors="replace").encode() == value
    return True


@st.composite
def batches(draw: st.DrawFn, of: Columns, *, by_log: bool = True) -> list[tuple[Any, ...]]:
    """Rows of few distinct keys; `by_log`: of the log, not of the base, in which `deltalake` makes
    names of folders of partition values."""
    one: list[st.SearchStrategy[Any]] = []
    for number, (name, kind) in enumerate(zip(of.names, of.kinds, strict=True)):
        values = [kind.ordinary, *kind.extremes]
        if name in of.partitions:
            values = [value for value in values if storable(kind, value)]
            if not by_log:
                values = [kind.ordinary]
        one.append(
            st.sampled_from(values) if number < of.keys else st.none() | st.sampled_from(values)
        )
    return draw(st.lists(st.tuples(*one), max_size=6))


@settings(max_examples=few(20, 1000))
@given(st.data(), columns())
def test_services_change_no_value(data: st.DataObject, of: Columns) -> None:
    rows = [data.draw(batches(of, by_log=number > 0)) for number in range(4)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t"
        ordering = of.names[of.keys] if of.ordered else ""
        base = of.table(rows[0])
        merged = made(
            path, base, keys=of.names[: of.keys], ordering=ordering, partition_by=of.partitions
        )
        for upserts, deletes in ((rows[1], rows[2]), (rows[3], rows[0])):
            if upserts or deletes:
                merged.append(of.table(upserts), of.table(deletes).select(of.deciding))
        assert_services_change_nothing(path)
