"""The rule for rewrites, line by line, and what it refuses to publish."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from tandem.errors import CountMismatch, RowMapInvalid
from tandem.reconcile.model import FileState
from tandem.reconcile.rewrite import Moved, RewriteInput, input_fate, rewrite
from tandem.reconcile.rules import REWRITE, InputFate
from tandem.rowmap.rowmap import RowMap, RowMapBuilder, RowMapIdentity


class View:
    def __init__(self, **dead: set[int] | None) -> None:
        self._dead = dead

    def get(self, path: str) -> FileState | None:
        gone = self._dead.get(path)
        return None if gone is None else FileState(path, 4, BitMap64(sorted(gone)))


INPUTS = [RewriteInput(path, BitMap64([0]), 4) for path in ("a", "b")]
"""Two files of four rows, the first row of each deleted when read."""


def the_map(*bins: tuple[str, ...]) -> RowMap:
    builder = RowMapBuilder(RowMapIdentity("t", "op", 1, 3))
    for number, members in enumerate(bins):
        for path in members:
            builder.add_input(path, 4, BitMap64([0]))
            builder.add_run(path, 0, 4, f"out{number}")
    return builder.build()


TOGETHER, APART = the_map(("a", "b")), the_map(("a",), ("b",))


def test_every_change_of_an_input_has_a_rule() -> None:
    assert set(REWRITE) == set(InputFate)


def test_unchanged_inputs_need_no_masks() -> None:
    decision = rewrite(INPUTS, View(a={0}, b={0}), TOGETHER)
    assert (decision.removes, decision.outputs, decision.masks) == (("a", "b"), ("out0",), {})


def test_superset_is_remapped() -> None:
    decision = rewrite(INPUTS, View(a={0, 2}, b={0, 1, 3}), TOGETHER)
    assert decision.masks == {"out0": BitMap64([1, 3, 5])}
    assert (decision.counts.deletes_remapped, decision.counts.rows_masked) == (3, 0)


@pytest.mark.parametrize("now", [set(), {1}, {1, 2, 3}])
def test_fewer_or_other_rows_deleted_the_file_lives_on(now: set[int]) -> None:
    decision = rewrite(INPUTS, View(a=now, b={0}), TOGETHER)
    assert decision.removes == ("b",)
    assert decision.masks == {"out0": BitMap64([0, 1, 2])}
    assert (decision.counts.deletes_remapped, decision.counts.rows_masked) == (0, 3)


def test_gone_is_masked_and_not_removed_again() -> None:
    decision = rewrite(INPUTS, View(b={0}), TOGETHER)
    assert decision.removes == ("b",)
    assert decision.masks == {"out0": BitMap64([0, 1, 2])}


def test_an_output_without_a_live_row_is_dropped() -> None:
    decision = rewrite(INPUTS, View(a={0, 1, 2, 3}, b={0}), APART)
    assert decision.outputs == ("out1",)
    assert decision.removes == ("a", "b")
    assert decision.masks == {}
    assert not decision.superseded


def test_a_rewrite_without_a_usable_input_is_superseded() -> None:
    decision = rewrite(INPUTS, View(), TOGETHER)
    assert decision.superseded
    assert (decision.removes, decision.outputs) == ((), ())
    assert rewrite(INPUTS, View(a=set(), b=set()), TOGETHER).superseded


def test_inputs_without_a_live_row_are_removed_without_an_output() -> None:
    builder = RowMapBuilder(RowMapIdentity("t", "op", 1, 3))
    builder.add_input("a", 4, BitMap64(range(4)))
    inputs = [RewriteInput("a", BitMap64(range(4)), 4)]
    decision = rewrite(inputs, View(a={0, 1, 2, 3}), builder.build())
    assert (decision.removes, decision.outputs, decision.superseded) == (("a",), (), False)


def test_without_deletion_vectors_changed_bins_are_dropped() -> None:
    view = View(a={0, 1}, b={0})
    decision = rewrite(INPUTS, view, APART, deletion_vectors=False)
    assert (decision.removes, decision.outputs) == (("b",), ("out1",))
    assert decision.masks == {}
    assert (decision.counts.bins_dropped, decision.counts.deletes_remapped) == (1, 0)
    decision = rewrite(INPUTS, view, TOGETHER, deletion_vectors=False)
    assert decision.superseded
    assert decision.counts.bins_dropped == 1


def test_some_bins_alone_can_be_decided_but_never_half_of_one() -> None:
    decision = rewrite(INPUTS[1:], View(a={0}, b={0}), APART)
    assert (decision.removes, decision.outputs) == (("b",), ("out1",))
    with pytest.raises(RowMapInvalid, match="although the plan separates them"):
        rewrite(INPUTS[1:], View(a={0}, b={0}), TOGETHER)


def test_a_map_of_another_state_is_refused() -> None:
    with pytest.raises(RowMapInvalid, match="planned state"):
        rewrite([RewriteInput("a", BitMap64([1]), 4)], View(a={1}), APART)
    with pytest.raises(RowMapInvalid, match="does not know"):
        rewrite([RewriteInput("c", BitMap64(), 4)], View(a={1}), APART)


def test_a_file_with_another_number_of_rows_is_refused() -> None:
    class Overwritten:
        def get(self, path: str) -> FileState | None:
            return FileState(path, 5, BitMap64([0]))

    with pytest.raises(CountMismatch, match="not the one that was read"):
        rewrite(INPUTS, Overwritten(), TOGETHER)


def test_C7_a_map_that_loses_a_deleted_row_is_not_published() -> None:
    """A map that is valid in itself, but does not match what the caller knows (I-17)."""

    class Lossy(RowMap):
        def forward(self, input_: str, positions: BitMap64) -> dict[str, BitMap64]:
            return super().forward(input_, positions - BitMap64([2]))

    lossy = Lossy(TOGETHER.identity, TOGETHER.inputs, TOGETHER.outputs, TOGETHER.runs)
    with pytest.raises(CountMismatch, match="not found in the outputs"):
        rewrite(INPUTS, View(a={0, 1, 2}, b={0}), lossy)


def test_more_rows_deleted_are_not_the_same_ones_and_more() -> None:
    """A restore brought one back, and two others were deleted since."""
    planned = RewriteInput("a", BitMap64([1]), 9)
    assert input_fate(planned, FileState("a", 9, BitMap64([2, 3]))) is InputFate.OTHER
    assert input_fate(planned, FileState("a", 9, BitMap64([2]))) is InputFate.OTHER
    assert input_fate(planned, FileState("a", 9, BitMap64([1, 2]))) is InputFate.SUPERSET


@given(
    st.lists(
        st.tuples(*(st.none() | st.sets(st.integers(0, 3)) for _ in "ab")),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([TOGETHER, APART]),
)
def test_I16_rows_moved_for_one_version_change_no_decision_on_a_later_one(
    versions: list[tuple[set[int] | None, set[int] | None]], row_map: RowMap
) -> None:
    moved: Moved = {}
    for a, b in versions:
        again = rewrite(INPUTS, View(a=a, b=b), row_map, moved=moved)
        assert again == rewrite(INPUTS, View(a=a, b=b), row_map)


def test_rows_that_were_moved_before_are_not_moved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: Moved = {}
    rewrite(INPUTS, View(a={0, 1}, b={0, 2}), TOGETHER, moved=moved)
    asked = []

    def forward(self: RowMap, path: str, rows: BitMap64) -> dict[str, BitMap64]:
        asked.append(path)
        return original(self, path, rows)

    original = RowMap.forward
    monkeypatch.setattr(RowMap, "forward", forward)
    decision = rewrite(INPUTS, View(a={0, 1}, b={0, 2, 3}), TOGETHER, moved=moved)
    assert asked == ["b"]
    assert decision.masks == {"out0": BitMap64([0, 4, 5])}
