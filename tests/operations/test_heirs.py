"""Heirs of a rewrite's inputs, and how a change set is carried out."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from support.present import present
from tandem.delta.actions import AddFile
from tandem.delta.datafiles.reader import TableFormat
from tandem.delta.schema import Field, PrimitiveType, StructType
from tandem.errors import CountMismatch, DataFileMissing
from tandem.jobs.formats import InputFile
from tandem.operations.kinds import heirs
from tandem.operations.kinds.heirs import (
    HeirSearch,
    aligned,
    matched,
    origins_in,
    read_rows,
    row_numbers,
)
from tandem.operations.model import CommitContent, Edits, OutputFileChange, Work
from tandem.operations.session import carry_out
from tandem.reconcile.model import ChangeKind, CommitSummary, FileState
from tandem.reconcile.published import CommittedRewrite
from tandem.reconcile.rewrite import Heir, HeirRows, RewriteInput, rewrite
from tandem.rowmap import binary_format
from tandem.rowmap.rowmap import RowMap, RowMapBuilder, RowMapIdentity
from tandem.spark.jobs.edits import EditMaker
from tandem.storage import open_store

# Heirs of a rewrite's inputs: which live file holds what is left of an input that is gone.


IDENTITY = RowMapIdentity("t", "0" * 16, 1, 0)


@dataclass
class Table:
    """The inputs of a rewrite, and what happens to them. A commit is the files that it adds, each
    with its rows, and those that it removes."""

    rows: dict[str, Sequence[object]]
    dead: dict[str, set[int]] = field(default_factory=dict)
    maps: dict[str, RowMap] = field(default_factory=dict)
    partitions: dict[str, dict[str, str | None]] = field(default_factory=dict)
    commits: list[CommitSummary] = field(default_factory=list)
    read: list[str] = field(default_factory=list)
    snapshot: Any = field(default_factory=lambda: SimpleNamespace(version=0))
    newest: int = 0

    def __post_init__(self) -> None:
        self.live = set(self.rows)
        self.inputs = tuple(self.rows)
        self.search: HeirSearch | None = None

    def commit(
        self,
        adds: Mapping[str, Sequence[object]],
        *removes: str,
        kind: ChangeKind = ChangeKind.CHANGE,
    ) -> None:
        self.rows.update(adds)
        self.live = (self.live | set(adds)) - set(removes)
        files = frozenset((*adds, *removes))
        number = len(self.commits) + 1
        self.commits.append(CommitSummary(number, kind, files, added=frozenset(adds)))

    def edit(self, path: str, source: str, *, drops: Sequence[int] = (), **new: object) -> None:
        """An edit of ours of one file: `new` are values by position (`_2=5`)."""
        changed = {int(name[1:]): value for name, value in new.items()}
        builder = RowMapBuilder(IDENTITY)
        builder.add_input(source, len(self.rows[source]), BitMap64(drops))
        builder.add_run(source, 0, len(self.rows[source]), path)
        kept = [p for p in range(len(self.rows[source])) if p not in drops]
        builder.add_changed(path, BitMap64([kept.index(p) for p in changed]))
        rows = [changed.get(p, self.rows[source][p]) for p in kept]
        self.maps[path] = builder.build()
        self.commit({path: rows}, source)

    def heirs(self, *, by_content: bool = True) -> list[Heir]:
        """Those that the search finds now, of all inputs that are gone."""
        if self.search is None:
            builder = RowMapBuilder(IDENTITY)
            for path in self.inputs:
                builder.add_input(path, len(self.rows[path]), BitMap64(self.dead.get(path, ())))
                builder.add_run(path, 0, len(self.rows[path]), "o")
            inputs = {path: self._input(path) for path in self.inputs}
            self.search = HeirSearch(
                self._read, cast(Any, self), 0, inputs, builder.build(), lambda _: self.newest
            )
        gone = [path for path in self.inputs if path not in self.live]
        return list(self.search.of(gone, cast(Any, self), by_content=by_content))

    def _input(self, path: str) -> InputFile:
        rows = self.rows[path]
        values = self.partitions.get(path, {})
        return InputFile(logged_path=path, size=len(rows), rows=len(rows), partition_values=values)

    def _read(self, file: InputFile, _columns: Sequence[str] | None) -> pa.Table:
        self.read.append(file.logged_path)
        if file.logged_path.startswith("vacuumed"):
            raise DataFileMissing("gone", resource=file.logged_path)
        return pa.table({"x": self.rows[file.logged_path]})

    # A history, and a view of its latest version

    @property
    def row_maps(self) -> dict[str, RowMap]:
        return self.maps

    def since(self, version: int, _latest: object) -> list[CommitSummary]:
        return [commit for commit in self.commits if commit.version > version]

    def prefetch(self, paths: object) -> None:
        pass

    def add(self, path: str) -> AddFile | None:
        if path not in self.live:
            return None
        values = self.partitions.get(path, {})
        return AddFile(path, values, len(self.rows[path]), 0, data_change=True)

    def get(self, path: str) -> FileState | None:
        if path not in self.live:
            return None
        dead = BitMap64(self.dead.get(path, ())) if path not in self.inputs else BitMap64()
        return FileState(path, len(self.rows[path]), dead)


def origins(heir: Heir) -> dict[int, tuple[str, int]]:
    """Row of an heir → where it comes from."""
    return {
        position: (part.source, origin)
        for part in heir.rows
        for position, origin in zip(part.positions.tolist(), part.origins.tolist(), strict=True)
    }


# --- By row maps ---------------------------------------------------------------------------------


def test_an_edit_of_an_edit_leads_to_the_input_and_says_which_rows_have_new_values() -> None:
    table = Table({"a": [1, 2, 3, 4]})
    table.edit("e1", "a", drops=[0], _2=30)
    table.edit("e2", "e1", drops=[2], _0=20)
    (heir,) = table.heirs(by_content=False)
    assert heir.path == "e2"
    assert origins(heir) == {0: ("a", 1), 1: ("a", 2)}
    assert heir.changed == BitMap64([0, 1])
    assert table.read == []


def test_an_input_that_was_an_edit_itself_is_where_the_search_ends() -> None:
    """What it was made from is none of the rewrite's inputs."""
    table = Table({"e1": [2, 3]})
    builder = RowMapBuilder(IDENTITY)
    builder.add_input("a", 3, BitMap64([0]))
    builder.add_run("a", 0, 3, "e1")
    table.maps["e1"] = builder.build()
    table.edit("e2", "e1", _1=30)
    (heir,) = table.heirs(by_content=False)
    assert origins(heir) == {0: ("e1", 0), 1: ("e1", 1)}
    assert heir.changed == BitMap64([1])


def test_an_heir_that_a_restore_brings_back_is_one() -> None:
    """The commit that brings it back removes nothing of what it was made from."""
    table = Table({"a": [1, 2]})
    table.edit("e1", "a", _0=10)
    table.commit({}, "e1")
    assert table.heirs(by_content=False) == []
    table.commit({"e1": [10, 2]})
    assert [heir.path for heir in table.heirs(by_content=False)] == ["e1"]


def test_a_file_made_of_two_is_no_edit() -> None:
    table = Table({"a": [1], "b": [2]})
    builder = RowMapBuilder(IDENTITY)
    for path in "ab":
        builder.add_input(path, 1)
        builder.add_run(path, 0, 1, "e")
    table.maps["e"] = builder.build()
    table.commit({"e": [1, 2]}, "a", "b")
    assert table.heirs(by_content=False) == []


def test_a_file_without_a_map_and_files_of_our_rewrites_are_no_heirs_by_map() -> None:
    table = Table({"a": [1], "b": [2]})
    table.commit({"foreign": [1]}, "a")
    table.edit("o1", "b")
    table.commits[-1] = CommitSummary(
        2, ChangeKind.MAPPED_REWRITE, table.commits[-1].files, added=table.commits[-1].added
    )
    assert table.heirs(by_content=False) == []


# --- By content ----------------------------------------------------------------------------------


def test_rows_that_equal_rows_of_gone_inputs_make_an_heir_of_any_writer() -> None:
    table = Table({"a": [1, 2, 2], "b": [4, 5], "c": [6]})
    table.commit({"f": [5, 2, 1, 2]}, "a", "b")
    (heir,) = table.heirs()
    assert origins(heir) == {0: ("b", 1), 1: ("a", 1), 2: ("a", 0), 3: ("a", 2)}
    assert not heir.changed
    assert table.heirs(by_content=False) == []


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([1, 9], "a row with a value that no input had"),
        ([1, 1], "a row more often than the inputs had it"),
        ([1, None], "null is a value"),
        ([1, 6], "a row of an input that was not removed"),
    ],
)
def test_one_row_that_no_gone_input_had_is_enough(rows: list[int | None], why: str) -> None:
    table = Table({"a": [1, 2], "c": [6]})
    table.commit({"f": rows}, "a")
    assert table.heirs() == [], why


def test_rows_count_as_they_are_live() -> None:
    """Deleted rows of an heir may be any; rows that were deleted when read are in no output."""
    table = Table({"a": [1, 2, 3]}, dead={"a": {0}, "f": {1}, "g": set()})
    table.commit({"f": [2, 99, 3]}, "a")
    (heir,) = table.heirs()
    assert origins(heir) == {0: ("a", 1), 2: ("a", 2)}
    table.commit({"g": [1, 2]}, "f")
    assert table.heirs() == []


def test_a_chain_of_commits_of_others_leads_back_to_the_input() -> None:
    table = Table({"a": [1, 2, 3], "b": [4]})
    table.commit({"f": [1, 2]}, "a")
    table.commit({"g": [4, 2]}, "f", "b")
    (heir,) = table.heirs()
    assert origins(heir) == {0: ("b", 0), 1: ("a", 1)}


def test_rows_of_other_partitions_are_other_rows() -> None:
    table = Table({"a": [1], "b": [1]}, partitions={"a": {"p": "1"}, "b": {"p": "2"}})
    table.partitions["f"] = {"p": "2"}
    table.commit({"f": [1]}, "a", "b")
    (heir,) = table.heirs()
    assert origins(heir) == {0: ("b", 0)}


def test_files_are_compared_while_they_become_fewer() -> None:
    """Half as many in a round as in the one before, and no more once others commit as fast."""
    table = Table({name: [number] for number, name in enumerate("abcdefgh")})
    for number, name in enumerate("abcd"):
        table.commit({name * 2: [number]}, name)
    assert len(table.heirs()) == 4
    for number, name in enumerate("ef", 4):
        table.commit({name * 2: [number]}, name)
    assert len(table.heirs()) == 6
    for number, name in enumerate("gh", 6):
        table.commit({name * 2: [number]}, name)
    assert len(table.heirs()) == 6  # two are not half of two
    assert {"gg", "hh"}.isdisjoint(table.read)
    table = Table({name: [number] for number, name in enumerate("abcdefgh")})
    for number, name in enumerate("abcdefgh"):
        table.commit({name * 2: [number]}, name)
    table.newest = 2
    assert len(table.heirs()) == 4
    assert len(table.heirs()) == 4


def test_files_that_are_gone_too_large_or_compared_before_are_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = Table({"a": [1, 2]})
    table.commit({"vacuumed": [1]}, "a")
    assert table.heirs() == []
    table = Table({"a": [1, 2]})
    table.commit({"f": [1]}, "a")
    table.heirs()
    assert sorted(table.read) == ["a", "f"]
    table.heirs()
    assert len(table.read) == 2  # nothing is compared twice
    assert [heir.path for heir in table.heirs()] == ["f"]  # that is known already
    table.commit({"g": [1]}, "f")
    assert table.heirs() == []
    assert "g" not in table.read
    monkeypatch.setattr(heirs, "MOST_BYTES", 2)
    table = Table({"a": [1, 2]})
    table.commit({"f": [1]}, "a")
    assert table.heirs() == []
    assert table.read == []


def test_a_file_without_a_row_can_be_read(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": pa.array([], pa.int64())}), tmp_path / "empty.parquet")
    store = open_store(tmp_path.as_uri(), {})
    schema = StructType(
        (Field("id", PrimitiveType("long")), Field("name", PrimitiveType("string")))
    )
    file = InputFile(logged_path="empty.parquet", size=1, rows=0)
    found = read_rows(store, TableFormat(schema), file)
    assert (found.num_rows, found.column_names) == (0, ["id", "name"])


# --- Values --------------------------------------------------------------------------------------


def bits(number: int) -> float:
    """A double by its bits."""
    found: float = struct.unpack("<d", struct.pack("<Q", number))[0]
    return found


QUIET, OTHER, NEGATIVE = map(bits, (0x7FF8 << 48, 0x7FF8 << 48 | 1, 0xFFF8 << 48))
"""Three NaNs."""
PAIR = pa.struct([("a", pa.int32()), ("b", pa.list_(pa.float64()))])
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "boolean": (pa.bool_(), [True, False, None]),
    "byte": (pa.int8(), [1, -128, None]),
    "long": (pa.int64(), [0, 2**63 - 1, -(2**63), None]),
    "float": (pa.float32(), [0.0, -0.0, math.inf, math.nan, 1.5, None]),
    "double": (pa.float64(), [0.0, -0.0, QUIET, OTHER, NEGATIVE, 1.5, None]),
    "decimal": (pa.decimal128(38, 2), [Decimal("0.00"), Decimal("-1.10"), None]),
    "date": (pa.date32(), [date(1, 1, 1), date(9999, 12, 31), None]),
    "timestamp": (pa.timestamp("us", "UTC"), [0, 1, -1, None]),
    "timestamp_ntz": (pa.timestamp("us"), [0, 1, None]),
    "string": (pa.string(), ["", "a", "A", "a ", "é", "e\u0301", "\0", None]),
    "binary": (pa.binary(), [b"", b"\0", b"\0\0", None]),
    "void": (pa.null(), [None]),
    "array": (pa.list_(pa.int32()), [[], [None], [0], [0, 0], [1, 2], [2, 1], None]),
    "array of floats": (pa.list_(pa.float64()), [[0.0], [-0.0], [QUIET], [OTHER], None]),
    "array of arrays": (
        pa.list_(pa.list_(pa.int32())),
        [[], [[]], [None], [[], []], [[1], [2, 3]], [[1, 2], [3]], None],
    ),
    "struct": (
        PAIR,
        [{"a": 1, "b": [0.0]}, {"a": 1, "b": [-0.0]}, {"a": 1, "b": []}, {"a": 1, "b": None},
         {"a": None, "b": None}, None],
    ),
    "empty struct": (pa.struct([]), [{}, None]),
    "array of structs": (
        pa.list_(PAIR),
        [[{"a": 1, "b": []}], [{"a": 1, "b": None}], [None], [{"a": None, "b": None}], []],
    ),
    "map": (
        pa.map_(pa.string(), pa.int32()),
        [[], [("a", 1)], [("a", None)], [("a", 1), ("b", 2)], [("b", 2), ("a", 1)], None],
    ),
    "map of structs": (
        pa.map_(pa.string(), pa.struct([("a", pa.int32())])),
        [[("k", None)], [("k", {"a": None})], [("k", {"a": 1})], None],
    ),
}  # fmt: skip
"""Different values of each type."""


def column(type_: pa.DataType, values: list[Any], chosen: list[int], cuts: int) -> Any:
    """An array of these values, cut out of a larger one, and in several chunks."""
    whole = pa.array([values[0], *(values[at] for at in chosen), values[0]], type_)
    inner = whole.slice(1, len(chosen))
    middle = len(inner) // 2 if cuts else 0
    chunks = [inner.slice(0, middle), inner.slice(middle)] if cuts else [inner]
    return pa.chunked_array(chunks, type_)


@pytest.mark.parametrize("name", VALUES)
@given(st.data())
def test_rows_have_one_number_if_and_only_if_they_are_equal_bit_by_bit(
    name: str, data: st.DataObject
) -> None:
    type_, values = VALUES[name]
    chosen = data.draw(st.lists(st.integers(0, len(values) - 1), max_size=8))
    beside = data.draw(st.lists(st.integers(0, 1), min_size=len(chosen), max_size=len(chosen)))
    cuts = data.draw(st.integers(0, 1))
    rows = pa.table({"v": column(type_, values, chosen, cuts), "x": pa.array(beside, pa.int64())})
    found = row_numbers(rows).tolist()
    wanted = list(zip(chosen, beside, strict=True))
    assert len(found) == len(wanted)
    for a in range(len(wanted)):
        for b in range(len(wanted)):
            assert (found[a] == found[b]) == (wanted[a] == wanted[b])


@pytest.mark.parametrize("name", VALUES)
@given(st.data())
def test_rows_that_are_left_are_found_in_order_or_in_any(name: str, data: st.DataObject) -> None:
    """What `aligned` finds is right; what it does not find, `matched` finds if it is there."""
    type_, values = VALUES[name]
    index = st.integers(0, len(values) - 1)
    before = data.draw(st.lists(index, max_size=10))
    kept = data.draw(st.lists(st.booleans(), min_size=len(before), max_size=len(before)))
    after = [value for value, stays in zip(before, kept, strict=True) if stays]
    changes = data.draw(st.sampled_from(["none", "shuffled", "one more"]))
    if changes == "shuffled":
        after = data.draw(st.permutations(after))
    elif changes == "one more":
        after = [*after, data.draw(index)]
    tables = [pa.table({"v": column(type_, values, rows, 1)}) for rows in (before, after)]
    in_order = aligned(*tables)
    is_nested = pa.types.is_nested(type_)
    if in_order is not None:
        assert [before[at] for at in in_order.tolist()] == after
        assert (np.diff(in_order) > 0).all()
    elif changes == "none":
        assert is_nested
    numbers = row_numbers(pa.concat_tables(tables))
    found = matched(numbers[: len(before)], numbers[len(before) :])
    possible = all(after.count(value) <= before.count(value) for value in set(after))
    assert (found is not None) == possible
    if found is not None:
        assert [before[at] for at in found.tolist()] == after
        assert len(set(found.tolist())) == len(after)


def test_equal_rows_are_matched_in_their_order() -> None:
    before, after = np.array([7, 5, 7, 7]), np.array([7, 7, 5])
    found = present(matched(before, after))
    assert found.tolist() == [0, 2, 1]


@given(st.integers(1, 5000), st.sets(st.integers(0, 4999), max_size=20), st.integers(0, 30))
def test_long_runs_of_equal_rows_are_aligned(rows: int, gone: set[int], distinct: int) -> None:
    """Rows are compared in blocks that grow; with few values a wrong start looks right for long."""
    before = pa.table({"x": np.arange(rows) % (distinct + 1), "y": np.arange(rows) // 100})
    kept = [p for p in range(rows) if p not in gone]
    after = before.take(pa.array(kept, pa.int64()))
    found = present(aligned(before, after))
    assert (np.diff(found) > 0).all()
    assert before.take(pa.array(found)).equals(after)


@pytest.mark.parametrize("key", [True, False], ids=["key", "no key"])
def test_rows_in_another_order_are_found_by_all_their_columns(key: bool) -> None:
    ids = list(range(300)) if key else [number // 2 for number in range(300)]
    before = pa.table({"id": ids, "x": [float(i % 7) for i in range(300)]})
    order = [*range(200, 300), *range(100), 150]
    after = before.take(order)
    found = present(origins_in([before.slice(0, 120), before.slice(120)], after))
    assert before.take(pa.array(found)).equals(after)
    assert len(set(found.tolist())) == len(order)
    for other in (-0.0, float("nan"), 8.0, None):
        values = after["x"].to_pylist()
        values[3] = other
        changed = after.set_column(1, "x", pa.array(values, pa.float64()))
        assert origins_in([before], changed) is None
    assert origins_in([before], pa.concat_tables([after, after])) is None, "used twice"
    nulls = after.set_column(0, "id", pa.nulls(len(order), pa.int64()))
    assert origins_in([before], nulls) is None


# How a change set is carried out: by deletion vectors, or by edits.


CHANGE_IDENTITY = RowMapIdentity("t", "0123456789abcdef", 1, 3)
JOBS_MAP = b"what the job wrote"


class View:
    """Of input `a` only its heir `e` is live: without row 0, and with another value in row 2."""

    def get(self, path: str) -> FileState | None:
        rows = {"e": 2, "b": 1}.get(path)
        return None if rows is None else FileState(path, rows, BitMap64())


def work() -> Work:
    plan = SimpleNamespace(
        table_id="t", operation_id=CHANGE_IDENTITY.operation_id, attempt=1, read_version=3
    )
    edits = Edits(cast(EditMaker, None))
    return cast(Work, SimpleNamespace(frozen=(plan, None), edits=edits))


def change_of(*, vectors: bool) -> CommitContent:
    builder = RowMapBuilder(CHANGE_IDENTITY)
    for path, rows in (("a", 3), ("b", 1)):
        builder.add_input(path, rows)
        builder.add_run(path, 0, rows, "o")
    row_map = builder.build()
    inputs = [RewriteInput("a", BitMap64(), 3), RewriteInput("b", BitMap64(), 1)]
    part = HeirRows("a", np.array([0, 1]), np.array([1, 2]))
    heir = Heir("e", (part,), BitMap64([1]))
    decision = rewrite(inputs, View(), row_map, deletion_vectors=vectors, heirs=[heir])
    output = OutputFileChange(AddFile("o", {}, 4, 0, False), 4, decision.masks["o"])
    return CommitContent(
        "OPTIMIZE",
        {},
        (output,),
        row_map=JOBS_MAP,
        rewrite=CommittedRewrite(row_map, decision, View()),
    )


def test_R5_with_vectors_too_the_map_leads_to_the_heir_that_the_commit_removes() -> None:
    """The job's map leads to the input, which is gone: others would not know what became of the
    heir's rows, and take the commit for a change."""
    found = carry_out.by_vectors(work(), change_of(vectors=True))
    row_map = binary_format.from_bytes(found.row_map, expected=CHANGE_IDENTITY)
    assert row_map.backward("o", BitMap64([1, 3])) == {"e": BitMap64([0]), "b": BitMap64([0])}
    # The changed row stays in the heir, and the deleted one is nowhere: both are hidden.
    assert found.outputs[0].dead == BitMap64([0, 2])
    assert row_map.input("e").dead == BitMap64([1])


def test_without_an_heir_the_map_is_what_the_job_wrote() -> None:
    change = CommitContent("OPTIMIZE", {}, row_map=JOBS_MAP)
    assert carry_out.by_vectors(work(), change) is change


def test_R4_an_edit_that_was_not_made_is_not_published() -> None:
    with pytest.raises(CountMismatch, match="asks for an edit that was not made"):
        carry_out.by_edits(work(), change_of(vectors=False))
