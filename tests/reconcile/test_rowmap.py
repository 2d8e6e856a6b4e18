"""Row maps: what they say of files in order, every damage to the bytes. Against a plain list of
rows: `test_rowmap_permuted.py`."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from reconcile.damage import require_damage_noticed, with_header
from support.calls import count_calls
from tandem.errors import ManifestInvalid, RowMapInvalid
from tandem.rowmap.binary_format import from_bytes, to_bytes
from tandem.rowmap.rowmap import (
    MapInput,
    MapOutput,
    RowMap,
    RowMapBuilder,
    RowMapIdentity,
    RowRun,
    merge,
)

IDENTITY = RowMapIdentity("table-1", "0123456789abcdef", 1, 7)


def build(dead: list[tuple[int, set[int]]], cuts: list[tuple[int, int, int, str]]) -> RowMap:
    """Inputs `i0, i1, …` as (rows, dead), runs as (input, start, end, output)."""
    builder = RowMapBuilder(IDENTITY)
    for index, (rows, gone) in enumerate(dead):
        builder.add_input(f"i{index}", rows, BitMap64(sorted(gone)))
    for index, start, end, output in cuts:
        builder.add_run(f"i{index}", start, end, output)
    return builder.build()


def test_inputs_split_and_merged_over_outputs() -> None:
    row_map = build(
        [(5, {1}), (3, set()), (2, {0, 1})],
        [(0, 0, 3, "a"), (0, 3, 5, "b"), (1, 0, 3, "b")],
    )
    assert row_map.forward("i0", BitMap64([0, 1, 2, 4])) == {
        "a": BitMap64([0, 1]),
        "b": BitMap64([1]),
    }
    assert row_map.backward("b", BitMap64([1, 2])) == {"i0": BitMap64([4]), "i1": BitMap64([0])}
    assert row_map.sources("b") == ("i0", "i1")
    assert row_map.bins() == ((("i0", "i1"), ("a", "b")), (("i2",), ()))


def test_parts_of_several_tasks_merge_into_one_map() -> None:
    left = build([(2, {0})], [(0, 0, 2, "a")])
    builder = RowMapBuilder(IDENTITY)
    builder.add_input("j", 3)
    builder.add_run("j", 0, 3, "b")
    whole = merge([left, builder.build()])
    assert whole.forward("j", BitMap64([2])) == {"b": BitMap64([2])}
    assert whole.backward("a", BitMap64([0])) == {"i0": BitMap64([1])}
    with pytest.raises(RowMapInvalid, match="twice"):
        merge([left, left])
    other = RowMapBuilder(RowMapIdentity("table-1", "0123456789abcdef", 2, 7)).build()
    with pytest.raises(RowMapInvalid, match="different rewrites"):
        merge([left, other])


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([RowRun(0, 0, 3, 0, 0)], "mapped"),  # a live row is left over
        ([RowRun(0, 0, 4, 0, 0), RowRun(0, 3, 4, 0, 3)], "overlap"),
        ([RowRun(0, 0, 2, 0, 0), RowRun(0, 2, 4, 0, 2)], "in no run, or in two"),
        ([RowRun(0, 0, 5, 0, 0)], "beyond its input"),
        ([RowRun(0, 0, 4, 1, 0)], "not there"),
    ],
)
def test_a_map_that_contradicts_itself_is_refused(runs: list[RowRun], message: str) -> None:
    inputs, outputs = [MapInput("i", 4, BitMap64([1]))], [MapOutput("o", 3)]
    RowMap(IDENTITY, inputs, outputs, [RowRun(0, 0, 4, 0, 0)])
    with pytest.raises(RowMapInvalid, match=message):
        RowMap(IDENTITY, inputs, outputs, runs)


def test_positions_beyond_the_file_are_refused() -> None:
    row_map = build([(4, {1})], [(0, 0, 4, "o")])
    with pytest.raises(RowMapInvalid, match="beyond its file"):
        row_map.forward("i0", BitMap64([4]))
    with pytest.raises(RowMapInvalid, match="beyond its file"):
        row_map.backward("o", BitMap64([3]))
    with pytest.raises(KeyError):
        row_map.forward("o", BitMap64([0]))


def edited(changed: dict[str, set[int]], *, is_sorted: bool = False) -> RowMap:
    """Two files of three rows, the second without its first one, with new values in these rows;
    perhaps beside a sorted one."""
    builder = RowMapBuilder(IDENTITY)
    for path, gone in (("i0", ()), ("i1", (0,))):
        builder.add_input(path, 3, BitMap64(gone))
        builder.add_run(path, 0, 3, path.replace("i", "e"))
    if is_sorted:
        builder.add_input("i2", 2)
        at = np.array([0, 0]), np.array([0, 1])
        builder.add_sorted(
            ["i2"], [MapOutput("s", 2)], origins=at, destinations=(at[0], at[1][::-1])
        )
    for path, rows in changed.items():
        builder.add_changed(path, BitMap64(sorted(rows)))
    return builder.build()


@given(st.sets(st.integers(0, 2)), st.sets(st.integers(0, 1)), st.booleans())
def test_changed_rows_are_kept_in_version_3_and_no_other_map_needs_it(
    first: set[int], second: set[int], is_sorted: bool
) -> None:
    row_map = edited({"e0": first, "e1": second}, is_sorted=is_sorted)
    data = to_bytes(row_map)
    found = from_bytes(data, expected=IDENTITY)
    assert found == row_map
    rows = {"e0": BitMap64(sorted(first)), "e1": BitMap64(sorted(second))}
    assert found.changed == {path: these for path, these in rows.items() if these}
    assert struct.unpack_from("<H", data, 8)[0] == (3 if first or second else 1 + is_sorted)
    # Where a row comes from is the same, whatever its values.
    assert found.backward("e1", BitMap64([0, 1])) == {"i1": BitMap64([1, 2])}
    assert (found == edited({}, is_sorted=is_sorted)) == (not first and not second)


def test_a_map_of_an_earlier_version_has_no_changed_rows_even_if_it_names_some() -> None:
    """As an operator that wrote it read it: older ones know no such field."""
    data = to_bytes(edited({}, is_sorted=True))
    assert from_bytes(data).changed == {}
    named = with_header(data, lambda header: header.update(changed=[[0, 1, 0]]))
    assert from_bytes(named).changed == {}


def test_parts_with_changed_rows_merge() -> None:
    other = RowMapBuilder(IDENTITY)
    other.add_input("j", 2)
    other.add_run("j", 0, 2, "f")
    other.add_changed("f", BitMap64([1]))
    whole = merge([edited({"e1": {0}}), other.build(), edited_alone("k")])
    assert whole.changed == {"e1": BitMap64([0]), "f": BitMap64([1])}


def edited_alone(name: str) -> RowMap:
    builder = RowMapBuilder(IDENTITY)
    builder.add_input(name, 1)
    builder.add_run(name, 0, 1, f"e-{name}")
    return builder.build()


@pytest.mark.parametrize(
    "changed", [{"e1": BitMap64([2])}, {"i0": BitMap64([0])}, {"x": BitMap64([0])}]
)
def test_changed_rows_that_no_output_has_are_refused(changed: dict[str, BitMap64]) -> None:
    row_map = edited({})
    with pytest.raises(RowMapInvalid, match="a changed row of"):
        RowMap(IDENTITY, row_map.inputs, row_map.outputs, row_map.runs, (), changed)


@pytest.mark.parametrize(
    "changed",
    [
        [],  # as many bytes are left over
        [[1, 1, 0]],
        [[1, 2, 18]],  # a count that the bitmap does not have
        [[7, 1, 18]],  # an output that is not there
        [[1, 1, -18]],
        [[1, 1, 10**6]],
        [[1, 1, "18"]],
        [[1, 1]],
        None,
    ],
)
def test_a_header_that_describes_other_changed_rows_is_refused(changed: object) -> None:
    data = to_bytes(edited({"e1": {1}}))
    size = len(BitMap64([1]).serialize())
    assert with_header(data, dict) == data

    def change(header: dict[str, Any]) -> None:
        assert header["changed"] == [[1, 1, size]]
        header["changed"] = json.loads(json.dumps(changed).replace("18", str(size)))

    with pytest.raises(RowMapInvalid, match="does not describe its body"):
        from_bytes(with_header(data, change))
    with pytest.raises(RowMapInvalid, match="does not describe its body"):
        from_bytes(with_header(data, lambda header: header.pop("changed")))


def test_every_cut_and_every_flipped_byte_is_noticed() -> None:
    data = to_bytes(build([(40, {1, 7}), (3, set())], [(0, 0, 40, "a"), (1, 0, 3, "a")]))
    require_damage_noticed(data)
    require_damage_noticed(to_bytes(edited({"e0": {0, 2}}, is_sorted=True)))
    with pytest.raises(RowMapInvalid, match="trailing bytes"):
        from_bytes(data + b"\0")


def test_other_versions_and_other_rewrites_are_refused_by_name() -> None:
    data = to_bytes(build([(2, set())], [(0, 0, 2, "a")]))
    for version in (0, 4):
        with pytest.raises(RowMapInvalid, match="another format version"):
            from_bytes(data[:8] + struct.pack("<H", version) + data[10:])
    stranger = RowMapIdentity("table-2", "0123456789abcdef", 1, 7)
    with pytest.raises(ManifestInvalid, match="another rewrite"):
        from_bytes(data, expected=stranger)


def test_a_large_map_is_small_and_fast() -> None:
    """40 files of 250,000 rows with 0.5 % dead when read; 100,000 deletes move in milliseconds."""
    rng = np.random.default_rng(1)
    builder = RowMapBuilder(IDENTITY)
    rows = 250_000
    for index in range(40):
        gone = rng.choice(rows, rows // 200, replace=False)
        builder.add_input(f"i{index}", rows, BitMap64(np.sort(gone).astype(np.uint64)))
        builder.add_run(f"i{index}", 0, rows, f"o{index // 20}")
    row_map = builder.build()
    assert len(to_bytes(row_map)) / (40 * rows) < 0.05
    deletes = {
        f"i{index}": BitMap64(np.sort(rng.choice(rows, 2_500, replace=False)).astype(np.uint64))
        for index in range(40)
    }

    def move() -> dict[str, dict[str, BitMap64]]:
        return {path: row_map.forward(path, positions) for path, positions in deletes.items()}

    moved = move()
    for path, positions in deletes.items():
        alive = positions - row_map.input(path).dead
        assert sum(len(there) for there in moved[path].values()) == len(alive)
        for output, there in moved[path].items():
            assert row_map.backward(output, there) == {path: alive}
    # 100,000 rows move: no loop over rows in Python.
    assert count_calls(move) < 20_000


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"runs":1', b'"runs":2'),  # other counts than the body has
        (b'["i0",3,1,', b'["i0",3,2,'),
        (b'"attempt":1', b'"attempt":x'),
        (b'"identity"', b'"Identity"'),
        (b'"outputs"', b'"oooputs"'),
    ],
)
def test_a_header_that_does_not_fit_its_body_is_refused_though_the_checksum_holds(
    old: bytes, new: bytes
) -> None:
    data = to_bytes(build([(3, {1})], [(0, 0, 3, "a")]))
    assert data.count(old) == 1
    changed = data[:-32].replace(old, new)
    with pytest.raises(RowMapInvalid, match="does not describe its body"):
        from_bytes(changed + hashlib.sha256(changed).digest())


def _asked_too_early() -> int:
    raise AssertionError("a small map needs no bound")


@pytest.mark.parametrize(
    ("rows", "message"),
    [(1 << 32, "4294967296 rows, and there are 1000 at most"), (-3, "negative number of rows")],
)
def test_a_map_that_claims_more_rows_than_there_can_be_is_refused_before_it_is_decoded(
    rows: int, message: str
) -> None:
    data = to_bytes(build([(3, {1})], [(0, 0, 3, "a")]))
    assert from_bytes(data, most_rows=_asked_too_early).input("i0").rows == 3
    size = struct.unpack_from("<I", data, 12)[0]
    header = json.loads(data[24 : 24 + size])
    header["inputs"][0][1] = header["outputs"][0][1] = rows
    # A compressor makes 16 GB of one byte half a megabyte. Here there is not even that.
    header["shuffles"] = [[[0], [0], "plain", 0]]
    text = json.dumps(header).encode()
    changed = data[:8] + struct.pack("<HHI", 2, 0, len(text)) + data[16:24] + text
    changed += data[24 + size : -32]
    with pytest.raises(RowMapInvalid, match=message):
        from_bytes(changed + hashlib.sha256(changed).digest(), most_rows=lambda: 1000)


def test_garbage_in_place_of_a_bitmap_is_refused_though_the_checksum_holds() -> None:
    dead = {1, 5, 70_000}
    data = to_bytes(build([(70_001, dead)], [(0, 0, 70_001, "a")]))
    blob = BitMap64(sorted(dead)).serialize()
    changed = data[:-32].replace(blob, b"\xff" * len(blob))
    with pytest.raises(RowMapInvalid):
        from_bytes(changed + hashlib.sha256(changed).digest())
