"""The rule for rewrites, line by line, and what it refuses to publish."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from tandem.errors import CountMismatch, RowMapInvalid
from tandem.reconcile.model import FileState
from tandem.reconcile.rewrite import (
    Heir,
    HeirRows,
    Moved,
    RewriteDecision,
    RewriteInput,
    input_fate,
    rewrite,
)
from tandem.reconcile.rules import REWRITE, InputFate
from tandem.rowmap.rowmap import RowMap, RowMapBuilder, RowMapIdentity


class View:
    def __init__(self, heirs: dict[str, int] | None = None, **dead: set[int] | None) -> None:
        self._dead = dead
        self._rows = heirs or {}

    def get(self, path: str) -> FileState | None:
        gone = self._dead.get(path)
        rows = self._rows.get(path, 4)
        return None if gone is None else FileState(path, rows, BitMap64(sorted(gone)))


INPUTS = [RewriteInput(path, BitMap64([0]), 4) for path in ("a", "b")]
"""Two files of four rows, the first row of each deleted when read."""


def the_map(*bins: tuple[str, ...], dead: tuple[int, ...] = (0,)) -> RowMap:
    builder = RowMapBuilder(RowMapIdentity("t", "op", 1, 3))
    for number, members in enumerate(bins):
        for path in members:
            builder.add_input(path, 4, BitMap64(dead))
            builder.add_run(path, 0, 4, f"out{number}")
    return builder.build()


TOGETHER, APART = the_map(("a", "b")), the_map(("a",), ("b",))
CLEAN = [RewriteInput(path, BitMap64(), 4) for path in "abcd"]
"""Files without a deleted row."""
PAIRS = the_map(("a", "b"), ("c", "d"), dead=())


def heir(path: str, *, changed: tuple[int, ...] = (), **rows: list[int]) -> Heir:
    """Rows of each input, in order, one after the other."""
    parts, at = [], 0
    for source, origins in rows.items():
        places = np.arange(at, at + len(origins))
        parts.append(HeirRows(source, places, np.array(origins, np.int64)))
        at += len(origins)
    return Heir(path, tuple(parts), BitMap64(changed))


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


def test_without_deletion_vectors_rows_are_hidden_all_the_same() -> None:
    """Who carries the decision out makes the outputs again without them."""
    view = View(a={0, 1}, b={0})
    decision = rewrite(INPUTS, view, APART, deletion_vectors=False)
    assert (decision.removes, decision.outputs) == (("a", "b"), ("out0", "out1"))
    assert decision.masks == {"out0": BitMap64([0])}
    decision = rewrite(INPUTS, View(a={1}, b={0, 2}), TOGETHER, deletion_vectors=False)
    assert (decision.removes, decision.outputs) == (("b",), ("out0",))
    assert decision.masks == {"out0": BitMap64([0, 1, 2, 4])}
    assert decision.left_alone == 0


def test_some_bins_alone_can_be_decided_but_never_half_of_one() -> None:
    decision = rewrite(INPUTS[1:], View(a={0}, b={0}), APART)
    assert (decision.removes, decision.outputs) == (("b",), ("out1",))
    with pytest.raises(RowMapInvalid, match="although the plan separates them"):
        rewrite(INPUTS[1:], View(a={0}, b={0}), TOGETHER)


# --- Groups that stay as they are ----------------------------------------------------------------


def test_a_group_of_which_one_input_is_left_stays_as_it_was_without_vectors() -> None:
    """A copy of one file is worth nothing. With vectors, the output is there already."""
    view = View(a=set(), c=set(), d=set())
    decision = rewrite(CLEAN, view, PAIRS, deletion_vectors=False)
    assert (decision.removes, decision.outputs) == (("c", "d"), ("out1",))
    assert decision.left_alone == 1
    assert rewrite(CLEAN, view, PAIRS).removes == ("a", "c", "d")
    only = rewrite(CLEAN[:2], View(a=set()), PAIRS, deletion_vectors=False)
    assert (only.superseded, only.left_alone) == (True, 1)
    none = rewrite(CLEAN[:2], View(), PAIRS, deletion_vectors=False)
    assert (none.superseded, none.left_alone) == (True, 0)


def test_a_file_with_rows_to_purge_and_a_file_that_was_alone_are_written_again() -> None:
    purged = rewrite(CLEAN[:2], View(a={2}), PAIRS, deletion_vectors=False)
    assert (purged.removes, purged.outputs, purged.left_alone) == (("a",), ("out0",), 0)
    alone = the_map(("a",), ("b",), ("c",), dead=())
    decision = rewrite(CLEAN[:1], View(a=set()), alone, deletion_vectors=False)
    assert (decision.removes, decision.left_alone) == (("a",), 0)


def test_a_contended_group_stays_and_the_others_commit() -> None:
    view = View(a=set(), b={1}, c=set(), d=set())
    for vectors in (True, False):
        decision = rewrite(CLEAN, view, PAIRS, deletion_vectors=vectors, contended=["b"])
        assert (decision.removes, decision.outputs) == (("c", "d"), ("out1",))
        assert decision.masks == {}
        assert decision.counts.bins_contended == 1
    everything = rewrite(CLEAN, view, PAIRS, contended=["a", "d"])
    assert everything.superseded
    assert everything.counts.bins_contended == 2


# --- Heirs ---------------------------------------------------------------------------------------


def test_an_heir_goes_in_place_of_its_input_with_its_values() -> None:
    """Row 1 was deleted, rows 2 and 3 got new values, and row 3 was deleted in the heir itself."""
    view = View({"e": 3}, e={2}, b=set())
    found = heir("e", a=[0, 2, 3], changed=(1, 2))
    decision = rewrite(CLEAN[:2], view, PAIRS, deletion_vectors=False, heirs=[found])
    assert decision.fates == {"a": InputFate.HEIR, "b": InputFate.SAME}
    assert set(decision.removes) == {"b", "e"}
    assert decision.masks == {"out0": BitMap64([1, 3])}
    (new,) = decision.new_rows["out0"]
    assert (new.heir, new.positions.tolist(), new.rows.tolist()) == ("e", [2], [1])
    assert decision.heirs == {"e": found}
    assert decision.counts.inputs_gone == 0


def test_with_vectors_an_heir_keeps_the_rows_that_it_changed() -> None:
    view = View({"e": 3}, e={2}, b=set())
    found = heir("e", a=[0, 2, 3], changed=(1, 2))
    decision = rewrite(CLEAN[:2], view, PAIRS, heirs=[found])
    assert decision.removes == ("b",)
    assert decision.cuts["e"].dead == BitMap64([0, 2])
    assert decision.masks == {"out0": BitMap64([1, 2, 3])}
    assert decision.new_rows == {}
    unchanged = rewrite(CLEAN[:2], view, PAIRS, heirs=[heir("e", a=[0, 2, 3])])
    assert set(unchanged.removes) == {"b", "e"}
    whole = heir("e", a=[0, 2, 3], changed=(0, 1, 2))
    all_changed = rewrite(CLEAN[:2], view, PAIRS, heirs=[whole])
    assert (all_changed.removes, all_changed.cuts) == (("b",), {})


@pytest.mark.parametrize("vectors", [True, False])
@pytest.mark.parametrize(
    ("found", "now", "why"),
    [
        (heir("e", a=[0, 1]), {"a": None}, "row 0 was dead when it was read: no output has it"),
        (heir("e", a=[1, 2]), {"a": {0}}, "its input lives, too"),
        (heir("e", a=[1, 2]), {"e": None}, "it is not live"),
        (heir("e", a=[1]), {}, "it has a second row, of which nothing is known"),
        (heir("e", a=[1], c=[1]), {}, "it has a row of a file that is no input"),
        (heir("b", a=[1, 2]), {"b": {0}}, "it is an input itself"),
        (heir("e", a=[1, 2]), {"e": {0, 1}}, "it has no live row"),
    ],
)
def test_R7_an_heir_stays_unless_all_its_rows_are_in_the_outputs(
    vectors: bool, found: Heir, now: dict[str, set[int] | None], why: str
) -> None:
    view = View({"e": 2}, **{"a": None, "b": {0}, "e": set(), **now})
    decision = rewrite(INPUTS, view, TOGETHER, deletion_vectors=vectors, heirs=[found])
    assert decision.heirs == {}, why
    assert "e" not in decision.removes
    assert decision.masks.get("out0", BitMap64([0, 1, 2])) == BitMap64([0, 1, 2])


def test_a_row_is_taken_from_one_heir_only() -> None:
    view = View({"e": 2, "f": 2}, e=set(), f=set(), b=set())
    heirs = [heir("f", a=[1, 2]), heir("e", a=[0, 1])]
    decision = rewrite(CLEAN[:2], view, PAIRS, deletion_vectors=False, heirs=heirs)
    assert set(decision.removes) == {"b", "e"}
    apart = [heir("f", a=[2, 3]), heir("e", a=[0, 1])]
    decision = rewrite(CLEAN[:2], view, PAIRS, deletion_vectors=False, heirs=apart)
    assert set(decision.removes) == {"b", "e", "f"}
    assert decision.masks == {}


def test_the_heir_of_a_file_that_was_cut_stays() -> None:
    """It has rows that the outputs lack."""
    cut = [RewriteInput(path, BitMap64(), 4, cut=True) for path in "ab"]
    view = View({"e": 2}, e=set(), b=set())
    decision = rewrite(cut, view, PAIRS, deletion_vectors=False, heirs=[heir("e", a=[0, 1])])
    assert decision.heirs == {}
    assert decision.removes == ("b",)


def test_an_heir_of_two_groups_stays_if_one_of_them_does() -> None:
    """Of group a, b nothing but a part of the heir is left: so the other part stays, too."""
    view = View({"e": 2}, e=set(), d=set())
    shared = heir("e", a=[1], c=[1])
    decision = rewrite(CLEAN, view, PAIRS, deletion_vectors=False, heirs=[shared])
    assert decision.superseded  # without the heir, group c, d has one file left
    assert decision.left_alone == 2
    assert decision.fates["c"] is InputFate.GONE
    with_rows_to_purge = View({"e": 2}, e=set(), d={0})
    decision = rewrite(CLEAN, with_rows_to_purge, PAIRS, deletion_vectors=False, heirs=[shared])
    assert (decision.removes, decision.left_alone) == (("d",), 1)
    assert decision.masks == {"out1": BitMap64([0, 1, 2, 3, 4])}
    contended = View({"e": 2}, e=set(), b=set(), d={0})
    decision = rewrite(
        CLEAN, contended, PAIRS, deletion_vectors=False, heirs=[shared], contended=["a"]
    )
    assert (decision.removes, decision.counts.bins_contended) == (("d",), 1)


def test_R3_an_input_that_a_restore_brings_back_is_as_if_nothing_had_been() -> None:
    """Decisions start from what was read, whatever an earlier one has said (N3)."""
    moved: Moved = {}
    edited = View({"e": 2}, e=set(), b=set())
    heirs = [heir("e", a=[0, 1], changed=(1,))]

    def decide(view: View) -> RewriteDecision:
        return rewrite(CLEAN[:2], view, PAIRS, deletion_vectors=False, heirs=heirs, moved=moved)

    before = decide(View(a=set(), b=set()))
    assert decide(edited).new_rows
    assert decide(View(b={0})).masks == {"out0": BitMap64([0, 1, 2, 3, 4])}
    assert decide(View(a=set(), b=set())) == before
    assert (before.removes, before.masks, before.new_rows) == (("a", "b"), {}, {})


# --- What is refused -----------------------------------------------------------------------------


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
