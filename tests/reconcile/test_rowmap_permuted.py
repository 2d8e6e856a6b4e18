"""Row maps of sorted rows against a plain list of rows, alone and mixed with ordered bins."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from reconcile.damage import require_damage_noticed, with_header
from reconcile.test_published import View
from support.some import few
from tandem.errors import RowMapInvalid
from tandem.reconcile.model import FileState
from tandem.reconcile.rewrite import RewriteInput, rewrite
from tandem.rowmap import binary_format
from tandem.rowmap.binary_format import from_bytes, to_bytes
from tandem.rowmap.rowmap import (
    MapInput,
    MapOutput,
    RowMap,
    RowMapBuilder,
    RowMapIdentity,
    RowRun,
    SortedGroup,
    merge,
)
from tandem.rowmap.run_table import to_bitmap

IDENTITY = RowMapIdentity("table-1", "0123456789abcdef", 1, 7)
Place = tuple[str, int]
Plain = dict[Place, Place]


def arrays(pairs: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    return (
        np.array([a for a, _ in pairs], dtype=np.int64),
        np.array([b for _, b in pairs], dtype=np.int64),
    )


@dataclass
class Shuffled:
    """A map as it was built, and the same as a dictionary, row by row."""

    row_map: RowMap
    plain: Plain


@st.composite
def shuffled(draw: st.DrawFn) -> Shuffled:
    """Some bins, some of them sorted; the rows of each cut into outputs anywhere."""
    builder = RowMapBuilder(IDENTITY)
    plain: Plain = {}
    for bin_ in range(draw(st.integers(1, 3))):
        inputs: list[str] = []
        rows: list[tuple[int, int]] = []
        for index, size in enumerate(draw(st.lists(st.integers(0, 10), min_size=1, max_size=4))):
            dead = draw(st.sets(st.integers(0, size - 1))) if size else set()
            inputs.append(f"i{bin_}.{index}")
            builder.add_input(inputs[-1], size, BitMap64(sorted(dead)))
            rows += [(index, p) for p in range(size) if p not in dead]
        is_sorted = draw(st.booleans())
        after = draw(st.permutations(rows)) if is_sorted else rows
        cut = draw(st.integers(1, 9))
        placed = [divmod(place, cut) for place in range(len(after))]
        for (index, position), (output, place) in zip(after, placed, strict=True):
            plain[(inputs[index], position)] = (f"o{bin_}.{output}", place)
        if not is_sorted:
            in_pieces = draw(st.booleans())
            pieces: dict[tuple[int, int, int], list[int]] = {}
            for (index, position), (output, _) in zip(after, placed, strict=True):
                piece = index, output, position if in_pieces else 0
                pieces.setdefault(piece, []).append(position)
            for (index, output, _), of_run in pieces.items():
                path = inputs[index]
                builder.add_run(path, of_run[0], of_run[-1] + 1, f"o{bin_}.{output}")
        else:
            sizes = [cut] * (len(after) // cut) + ([len(after) % cut] if len(after) % cut else [])
            pairs = draw(st.permutations(list(zip(after, placed, strict=True))))
            builder.add_sorted(
                inputs,
                [MapOutput(f"o{bin_}.{o}", size) for o, size in enumerate(sizes)],
                origins=arrays([origin for origin, _ in pairs]),
                destinations=arrays([there for _, there in pairs]),
            )
    return Shuffled(builder.build(), plain)


def by_file(found: list[Place]) -> dict[str, set[int]]:
    result: dict[str, set[int]] = {}
    for path, position in found:
        result.setdefault(path, set()).add(position)
    return result


def sets(found: dict[str, BitMap64]) -> dict[str, set[int]]:
    return {path: set(rows) for path, rows in found.items()}


@settings(max_examples=few(19, 150), deadline=None)
@given(shuffled(), st.randoms(use_true_random=False))
def test_every_direction_equals_a_walk_over_the_rows(case: Shuffled, rng: random.Random) -> None:
    row_map, plain = case.row_map, case.plain
    back = {there: here for here, there in plain.items()}
    for file in row_map.inputs:
        mine = {p: plain[(file.path, p)] for p in range(file.rows) if (file.path, p) in plain}
        asked = [p for p in range(file.rows) if rng.random() < rng.choice((0.2, 0.9))]
        rng.shuffle(asked)
        found = row_map.forward(file.path, BitMap64(sorted(asked)))
        assert sets(found) == by_file([mine[p] for p in asked if p in mine])
        assert sets(row_map.forward_all(file.path)) == by_file(list(mine.values()))
        outputs, places = row_map.locate(file.path, np.array(asked, dtype=np.int64))
        pairs = zip(outputs.tolist(), places.tolist(), strict=True)
        assert [(row_map.outputs[o].path, p) if o >= 0 else None for o, p in pairs] == [
            mine.get(p) for p in asked
        ]
        assert (outputs.dtype.name, places.dtype.name) == ("int32", "int64")
    for written in row_map.outputs:
        origin = {p: back[(written.path, p)] for p in range(written.rows)}
        asked = [p for p in range(written.rows) if rng.random() < rng.choice((0.2, 0.9))]
        rng.shuffle(asked)
        found = row_map.backward(written.path, BitMap64(sorted(asked)))
        assert sets(found) == by_file([origin[p] for p in asked])
        assert sets(row_map.origin(written.path)) == by_file(list(origin.values()))
        inputs, places = row_map.trace(written.path, np.array(asked, dtype=np.int64))
        pairs = zip(inputs.tolist(), places.tolist(), strict=True)
        assert [(row_map.inputs[i].path, p) for i, p in pairs] == [origin[p] for p in asked]
        assert set(row_map.sources(written.path)) == {path for path, _ in origin.values()}
    assert from_bytes(to_bytes(row_map), expected=IDENTITY) == row_map
    assert to_bytes(from_bytes(to_bytes(row_map))) == to_bytes(row_map)


@settings(max_examples=few(13, 100), deadline=None)
@given(shuffled())
def test_groups_hold_files_that_share_rows_and_every_file_once(case: Shuffled) -> None:
    found = case.row_map.bins()
    members = [path for inputs, _ in found for path in inputs]
    written = [path for _, outputs in found for path in outputs]
    assert sorted(members) == sorted(case.row_map.input_paths)
    assert sorted(written) == sorted(case.row_map.output_paths)
    group = {path: number for number, (i, o) in enumerate(found) for path in (*i, *o)}
    for (source, _), (output, _) in case.plain.items():
        assert group[source] == group[output]
    for inputs, outputs in found:
        assert len({path.split(".")[0][1:] for path in (*inputs, *outputs)}) <= 1


@settings(max_examples=40, deadline=None)
@given(st.lists(shuffled(), min_size=1, max_size=3))
def test_parts_merge_into_one_map(cases: list[Shuffled]) -> None:
    renamed = [_renamed(case.row_map, f"{n}/") for n, case in enumerate(cases)]
    whole = merge(renamed)
    for number, case in enumerate(cases):
        for (source, position), (output, place) in case.plain.items():
            there = whole.forward(f"{number}/{source}", BitMap64([position]))
            assert there == {f"{number}/{output}": BitMap64([place])}


def _renamed(row_map: RowMap, prefix: str) -> RowMap:
    return RowMap(
        row_map.identity,
        [MapInput(prefix + f.path, f.rows, f.dead) for f in row_map.inputs],
        [MapOutput(prefix + f.path, f.rows) for f in row_map.outputs],
        row_map.runs,
        row_map.sorted_groups,
    )


@settings(max_examples=few(13, 100), deadline=None)
@given(shuffled(), st.randoms(use_true_random=False))
def test_a_rewrite_masks_exactly_the_rows_deleted_meanwhile(
    case: Shuffled, rng: random.Random
) -> None:
    """SUPERSET, OTHER and GONE on outputs of sorted rows, by identity of rows."""
    row_map = case.row_map
    now: dict[str, FileState] = {}
    plan = [RewriteInput(f.path, f.dead, f.rows) for f in row_map.inputs]
    expected: set[Place] = set()
    for file in row_map.inputs:
        live = [p for p in range(file.rows) if p not in file.dead]
        match rng.choice(("same", "superset", "other", "gone")):
            case "same":
                dead = file.dead
                expected |= {(file.path, p) for p in live}
            case "superset":
                dead = file.dead | BitMap64([p for p in live if rng.random() < 0.5])
                expected |= {(file.path, p) for p in live if p not in dead}
            case "other":
                dead = BitMap64([p for p in range(file.rows) if rng.random() < 0.5])
                if dead.issuperset(file.dead):
                    expected |= {(file.path, p) for p in live if p not in dead}
            case _:
                continue
        now[file.path] = FileState(file.path, file.rows, dead)
    decision = rewrite(plan, View(now), row_map)
    back = {there: here for here, there in case.plain.items()}
    rows = {file.path: file.rows for file in row_map.outputs}
    published = {
        back[(path, p)]
        for path in decision.outputs
        for p in range(rows[path])
        if p not in decision.masks.get(path, BitMap64())
    }
    assert published == {row for row in expected if row[0] in decision.removes}


INPUTS = [MapInput("i", 4, BitMap64([1])), MapInput("j", 2, BitMap64())]
OUTPUTS = [MapOutput("o", 3), MapOutput("p", 2)]


def ranks(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.uint32)


@pytest.mark.parametrize(
    ("sorted_groups", "runs", "message"),
    [
        ([SortedGroup((0, 1), (0, 1), ranks(4, 3, 2, 1))], [], "4 rows are mapped, 5 were live"),
        ([SortedGroup((0, 1), (0,), ranks(4, 3, 2, 1, 0))], [], "to outputs of 3 rows"),
        ([SortedGroup((0, 1), (0, 1), ranks(4, 3, 2, 1, 5))], [], "to place 5 of 5"),
        ([SortedGroup((0, 1), (0, 1), ranks(4, 3, 2, 2, 0))], [], "place 1 .* held by no row"),
        ([SortedGroup((0, 0), (0, 1), ranks(4, 3, 2, 1, 0))], [], "sorted twice"),
        ([SortedGroup((0, 2), (0, 1), ranks(4, 3, 2, 1, 0))], [], "not there"),
        ([SortedGroup((0,), (0,), ranks(2, 1, 0))], [], "0 rows of j are mapped"),
        (
            [SortedGroup((0, 1), (0, 1), ranks(4, 3, 2, 1, 0))],
            [RowRun(1, 0, 2, 1, 0)],
            "in a run and sorted",
        ),
        (
            [SortedGroup((0,), (0,), ranks(2, 1, 0)), SortedGroup((1, 0), (1,), ranks(0, 1))],
            [],
            "sorted twice",
        ),
    ],
)
def test_a_map_of_sorted_rows_that_contradicts_itself_is_refused(
    sorted_groups: list[SortedGroup], runs: list[RowRun], message: str
) -> None:
    RowMap(IDENTITY, INPUTS, OUTPUTS, [], [SortedGroup((0, 1), (0, 1), ranks(4, 0, 2, 1, 3))])
    with pytest.raises(RowMapInvalid, match=message):
        RowMap(IDENTITY, INPUTS, OUTPUTS, runs, sorted_groups)


def origins_and_places() -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    return [(0, 0), (0, 2), (0, 3), (1, 0), (1, 1)], [(1, 1), (0, 0), (0, 2), (0, 1), (1, 0)]


@pytest.mark.parametrize(
    ("origin", "place"),
    [
        ((0, 1), (0, 0)),  # a row that was dead when read
        ((0, 0), (0, 0)),  # a row that is there twice
        ((0, 4), (0, 0)),  # beyond its file
        ((0, -1), (0, 0)),
        ((2, 0), (0, 0)),  # a file that is no input
        ((0, 2), (0, 3)),  # beyond the output
        ((0, 2), (0, -1)),
        ((0, 2), (2, 0)),  # no output
        ((0, 2), (-1, 0)),
        ((0, 2), (0, 1)),  # two rows at one place
        (None, None),  # a row is missing
    ],
)
def test_rows_that_a_job_reports_wrongly_are_refused(
    origin: tuple[int, int] | None, place: tuple[int, int] | None
) -> None:
    here, there = origins_and_places()

    def build() -> RowMap:
        builder = RowMapBuilder(IDENTITY)
        for file in INPUTS:
            builder.add_input(file.path, file.rows, file.dead)
        builder.add_sorted(["i", "j"], OUTPUTS, origins=arrays(here), destinations=arrays(there))
        return builder.build()

    assert build().forward("i", BitMap64([0, 2])) == {"p": BitMap64([1]), "o": BitMap64([0])}
    here[1:2] = [origin] if origin else []
    there[1:2] = [place] if place else []
    with pytest.raises(RowMapInvalid):
        build()


def a_sorted_map() -> RowMap:
    return RowMap(
        IDENTITY, INPUTS, OUTPUTS, [], [SortedGroup((0, 1), (0, 1), ranks(4, 0, 2, 1, 3))]
    )


def test_every_cut_and_every_flipped_byte_of_a_sorted_map_is_noticed() -> None:
    require_damage_noticed(to_bytes(a_sorted_map()))


@pytest.mark.parametrize(
    "change",
    [
        lambda h: h["shuffles"][0].__setitem__(2, "braille"),
        lambda h: h["shuffles"][0].__setitem__(2, "plain"),  # no compressed ranks are there
        lambda h: h["shuffles"][0].__setitem__(3, 16),
        lambda h: h["shuffles"][0].__setitem__(0, [0]),
        lambda h: h["shuffles"][0].__setitem__(0, [0, 7]),
        lambda h: h["shuffles"][0].__setitem__(1, [0]),
        lambda h: h.pop("shuffles"),
        lambda h: h.__setitem__("shuffles", []),
        # Numbers that are not integers, or that do not fit into memory.
        lambda h: h["outputs"][0].__setitem__(1, float("inf")),
        lambda h: h["inputs"][0].__setitem__(1, 10**30),
        lambda h: h["inputs"][0].__setitem__(1, 2**60),
    ],
)
def test_a_header_that_does_not_fit_the_ranks_is_refused_though_the_checksum_holds(
    change: Callable[[dict[str, Any]], object],
) -> None:
    with pytest.raises(RowMapInvalid):
        from_bytes(with_header(to_bytes(a_sorted_map()), change))


def test_a_map_without_sorted_rows_is_written_as_version_1_still() -> None:
    """A reader that knows only version 1 (an older Tandem) reads maps that need no more."""
    builder = RowMapBuilder(IDENTITY)
    builder.add_input("i0", 2)
    builder.add_run("i0", 0, 2, "a")
    data = to_bytes(builder.build())
    assert struct.unpack_from("<H", data, 8) == (1,)
    assert b"shuffles" not in data
    assert struct.unpack_from("<H", to_bytes(a_sorted_map()), 8) == (2,)


def in_order(rng: np.random.Generator, rows: int) -> np.ndarray:
    """40 inputs that are sorted already, merged."""
    owner = rng.integers(0, 40, rows)
    return np.argsort(owner, kind="stable").astype(np.uint32)


def few_values(rng: np.random.Generator, rows: int) -> np.ndarray:
    """Sorted by a column of 20 values; rows of one value keep their order."""
    order = np.argsort(rng.integers(0, 20, rows), kind="stable")
    found = np.empty(rows, dtype=np.uint32)
    found[order] = np.arange(rows, dtype=np.uint32)
    return found


def no_order(rng: np.random.Generator, rows: int) -> np.ndarray:
    return rng.permutation(rows).astype(np.uint32)


def as_it_was(rng: np.random.Generator, rows: int) -> np.ndarray:
    return np.arange(rows, dtype=np.uint32)


@pytest.mark.parametrize(
    ("order", "encoding", "bytes_per_row"),
    [
        (as_it_was, "forward", 0.01),
        (in_order, "forward", 1.2),
        (few_values, "inverse", 1.0),
        (no_order, "plain", 3.0),
    ],
)
def test_ranks_take_fewer_bytes_where_order_helps(
    order: Callable[[np.random.Generator, int], np.ndarray], encoding: str, bytes_per_row: float
) -> None:
    made = order(np.random.default_rng(3), 300_000)
    name, data = binary_format.encode(made)
    assert (name, len(data) / len(made) <= bytes_per_row) == (encoding, True)
    assert np.array_equal(binary_format.decode(name, data, len(made)), made)


@settings(max_examples=few(13, 100), deadline=None)
@given(st.integers(0, 60).flatmap(lambda n: st.permutations(range(n))))
def test_ranks_come_back_and_never_take_more_than_four_bytes(order: list[int]) -> None:
    made = np.array(order, dtype=np.uint32)
    name, data = binary_format.encode(made)
    assert len(data) <= 4 * len(made)
    assert np.array_equal(binary_format.decode(name, data, len(made)), made)


@pytest.mark.parametrize("encoding", ["raw", "plain", "forward", "inverse", "braille"])
def test_other_bytes_than_ranks_are_refused(encoding: str) -> None:
    with pytest.raises(ValueError, match=r"rank|row"):
        binary_format.decode(encoding, b"\x01\x02\x03\x04", 3)


def test_positions_beyond_a_sorted_file_are_refused() -> None:
    row_map = a_sorted_map()
    with pytest.raises(RowMapInvalid, match="beyond its file"):
        row_map.forward("i", BitMap64([4]))
    with pytest.raises(RowMapInvalid, match="beyond its file"):
        row_map.backward("o", BitMap64([3]))
    with pytest.raises(RowMapInvalid, match="beyond its file"):
        row_map.locate("i", np.array([-1], dtype=np.int64))


def test_a_large_sorted_map_is_followed_fast() -> None:
    """20 files of 50,000 rows, sorted together; 1 % of the rows move in milliseconds."""
    rng = np.random.default_rng(1)
    rows, files = 25_000, 20
    builder = RowMapBuilder(IDENTITY)
    for index in range(files):
        builder.add_input(f"i{index}", rows)
    order = rng.permutation(rows * files)
    place = np.arange(rows * files)
    builder.add_sorted(
        [f"i{index}" for index in range(files)],
        [MapOutput(f"o{index}", 50_000) for index in range(10)],
        origins=(order // rows, order % rows),
        destinations=(place // 50_000, place % 50_000),
    )
    row_map = builder.build()
    deletes = to_bitmap(np.sort(rng.choice(rows, 500, replace=False)))
    for index in range(files):
        moved = row_map.forward(f"i{index}", deletes)
        assert sum(map(len, moved.values())) == 500
        for output, there in moved.items():
            assert row_map.backward(output, there)[f"i{index}"].issubset(deletes)
