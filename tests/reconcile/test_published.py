"""The row map of a commit, beside a list of where each of its rows comes from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from support.some import few
from tandem.reconcile import published
from tandem.reconcile.model import FileState
from tandem.reconcile.published import CommittedRewrite, LiveEdit, OutputPiece, published_map
from tandem.reconcile.rewrite import Heir, HeirRows, RewriteDecision, RewriteInput, rewrite
from tandem.rowmap.binary_format import from_bytes, to_bytes
from tandem.rowmap.rowmap import MapOutput, RowMap, RowMapBuilder, RowMapIdentity
from tandem.rowmap.run_table import span

IDENTITY = RowMapIdentity("table-1", "0123456789abcdef", 1, 7)
At = tuple[str, int]
"""A row: its file, and its position there."""


@dataclass
class View:
    files: dict[str, FileState]

    def get(self, path: str) -> FileState | None:
        return self.files.get(path)


@dataclass
class Case:
    """A rewrite of some inputs, and the table that its commit follows. `places`: where its job
    wrote each row. `cuts`: outputs become two files, at the border of an input."""

    inputs: list[RewriteInput]
    row_map: RowMap
    places: dict[At, At]
    heirs: list[Heir]
    view: View
    vectors: bool
    cuts: bool

    def decided(self) -> RewriteDecision:
        return rewrite(
            self.inputs, self.view, self.row_map, deletion_vectors=self.vectors, heirs=self.heirs
        )

    def pieces(self, decision: RewriteDecision) -> dict[str, list[OutputPiece]]:
        """The files of each output: as the job wrote it, or edited, in one or two files."""
        found: dict[str, list[OutputPiece]] = {}
        for path in decision.outputs:
            rows = self.row_map.output(path).rows
            hidden = decision.masks.get(path, BitMap64())
            borders = self._borders(path) if self.cuts else []
            is_edited = hidden or path in decision.new_rows or borders
            if self.vectors or not is_edited:
                found[path] = [OutputPiece(path)]
                continue
            ends = [0, *borders[:1], rows]
            parts = [span(a, b) - hidden for a, b in pairwise(ends)]
            found[path] = [
                OutputPiece(f"{path}.{number}", kept) for number, kept in enumerate(parts) if kept
            ]
        return found

    def _borders(self, path: str) -> list[int]:
        number = self.row_map.output_number(path)
        return sorted(r.out_start for r in self.row_map.runs if r.output == number and r.out_start)

    def edits(self, decision: RewriteDecision) -> list[LiveEdit]:
        """The files that a cut makes again."""
        if self.vectors:
            return []
        return [LiveEdit(p, cut.rows, cut.dead, f"{p}.e") for p, cut in decision.cuts.items()]


def rows_of_gone(heir: Heir) -> dict[At, int]:
    return {
        (part.source, origin): position
        for part in heir.rows
        for position, origin in zip(part.positions.tolist(), part.origins.tolist(), strict=True)
    }


def expected(
    case: Case,
    decision: RewriteDecision,
    pieces: dict[str, list[OutputPiece]],
    edits: list[LiveEdit],
) -> dict[At, At]:
    """Each visible row of the commit's files → the row that it was before the commit."""
    before = {place: origin for origin, place in case.places.items()}
    taken = {}
    for heir in decision.heirs.values():
        now = case.view.files[heir.path]
        for origin, position in rows_of_gone(heir).items():
            if position not in now.dead:
                taken[origin] = (heir.path, position)
    found = {}
    for output, files in pieces.items():
        hidden = decision.masks.get(output, BitMap64())
        for piece in files:
            kept = piece.kept
            rows = range(case.row_map.output(output).rows) if kept is None else sorted(kept)
            for number, row in enumerate(rows):
                if kept is not None or row not in hidden:
                    origin = before[output, row]
                    found[piece.path, number] = taken.get(origin, origin)
    for edit in edits:
        stays = [row for row in range(edit.rows) if row not in edit.dead]
        found.update({(edit.path, n): (edit.source, row) for n, row in enumerate(stays)})
    return found


# --- Cases ---------------------------------------------------------------------------------------


def positions(draw: st.DrawFn, rows: int) -> BitMap64:
    return BitMap64(sorted(draw(st.sets(st.integers(0, rows - 1))))) if rows else BitMap64()


@st.composite
def cases(draw: st.DrawFn) -> Case:
    vectors: bool = draw(st.booleans())
    is_cut = draw(st.integers(0, 4)) == 0
    sizes = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    inputs: list[RewriteInput] = []
    stays: dict[str, BitMap64] = {}
    for number, rows in enumerate(sizes):
        path, dead = f"i{number}", positions(draw, rows)
        copies = draw(st.integers(0, 3)) == 0 and not is_cut
        left_out, kept = (BitMap64(), dead) if copies else (dead, BitMap64())
        stays[path] = left_out | (positions(draw, rows) if is_cut else BitMap64())
        inputs.append(RewriteInput(path, left_out, rows, is_cut, kept))
    row_map, places = _job(draw, inputs, stays)
    view, heirs = View({}), []
    lost: list[RewriteInput] = []
    for file in inputs:
        fate = draw(st.sampled_from(["same", "more", "other", "gone", "edited"]))
        was = file.dead_at_read | file.kept
        if fate in ("same", "more", "other"):
            more = positions(draw, file.rows)
            dead = was if fate == "same" else was | more if fate == "more" else more
            view.files[file.path] = FileState(file.path, file.rows, dead)
        elif fate == "gone" or is_cut:
            lost.append(file)
        else:
            heirs.append(_edit_of(draw, file, view))
    if lost and not is_cut and draw(st.integers(0, 2)):
        heirs += _by_content(draw, lost, view)
    return Case(inputs, row_map, places, heirs, view, vectors, draw(st.booleans()))


def _job(
    draw: st.DrawFn, inputs: Sequence[RewriteInput], stays: dict[str, BitMap64]
) -> tuple[RowMap, dict[At, At]]:
    """What a job writes: one bin or two, each in order or sorted."""
    builder, places = RowMapBuilder(IDENTITY), dict[At, At]()
    for file in inputs:
        builder.add_input(file.path, file.rows, stays[file.path])
    border: int = draw(st.integers(0, len(inputs)))
    for name, members in (("o", inputs[:border]), ("s", inputs[border:])):
        rows = [
            (file.path, row)
            for file in members
            for row in range(file.rows)
            if row not in stays[file.path]
        ]
        is_sorted: bool = draw(st.booleans())
        order = draw(st.permutations(rows)) if is_sorted else rows
        per_output = draw(st.integers(1, 8))
        of_bin = {at: (f"{name}{n // per_output}", n % per_output) for n, at in enumerate(order)}
        places.update(of_bin)
        if is_sorted and rows:
            _add_sorted(builder, [file.path for file in members], of_bin)
            continue
        for file in members:
            of_file = [(row, of_bin[file.path, row][0]) for path, row in rows if path == file.path]
            for output in dict.fromkeys(output for _, output in of_file):
                mine = [row for row, of in of_file if of == output]
                builder.add_run(file.path, mine[0], mine[-1] + 1, output)
    return builder.build(), places


def _add_sorted(builder: RowMapBuilder, paths: Sequence[str], places: dict[At, At]) -> None:
    outputs = sorted({output for output, _ in places.values()})
    rows = [sum(1 for of, _ in places.values() if of == output) for output in outputs]
    builder.add_sorted(
        paths,
        [MapOutput(path, count) for path, count in zip(outputs, rows, strict=True)],
        origins=(
            np.array([paths.index(path) for path, _ in places], np.int64),
            np.array([row for _, row in places], np.int64),
        ),
        destinations=(
            np.array([outputs.index(path) for path, _ in places.values()], np.int64),
            np.array([row for _, row in places.values()], np.int64),
        ),
    )


def _edit_of(draw: st.DrawFn, file: RewriteInput, view: View) -> Heir:
    """An heir that our statement made: some rows of one file, in order, some with new values."""
    kept = sorted(span(0, file.rows) - positions(draw, file.rows))
    if draw(st.integers(0, 2)):  # mostly none that the outputs lack
        kept = [row for row in kept if row not in file.dead_at_read]
    path = f"e{file.path}"
    view.files[path] = FileState(path, len(kept), positions(draw, len(kept)))
    places = np.arange(len(kept))
    rows = HeirRows(file.path, places, np.array(kept, np.int64))
    return Heir(path, (rows,), positions(draw, len(kept)))


def _by_content(draw: st.DrawFn, gone: Sequence[RewriteInput], view: View) -> list[Heir]:
    """Heirs of others: the rows of some files in any order, in one file or two."""
    rows = [(f.path, row) for f in gone for row in range(f.rows) if row not in f.dead_at_read]
    rows = draw(st.permutations(rows))[: draw(st.integers(0, len(rows)))]
    border = draw(st.integers(0, len(rows)))
    heirs = []
    for path, found in (("f0", rows[:border]), ("f1", rows[border:])):
        view.files[path] = FileState(path, len(found), positions(draw, len(found)))
        parts = []
        for source in sorted({source for source, _ in found}):
            here = [n for n, (of, _) in enumerate(found) if of == source]
            origins = np.array([found[n][1] for n in here], np.int64)
            parts.append(HeirRows(source, np.array(here, np.int64), origins))
        if parts:
            heirs.append(Heir(path, tuple(parts)))
    return heirs


# --- Rewrites ------------------------------------------------------------------------------------


@settings(max_examples=few(150, 3_000))
@given(cases(), st.sampled_from([published._MOST_RUNS, 0]))
def test_a_map_says_what_each_row_was_before_the_commit(case: Case, most_runs: int) -> None:
    decision = case.decided()
    pieces, edits = case.pieces(decision), case.edits(decision)
    committed = CommittedRewrite(case.row_map, decision, case.view)
    with mock.patch.object(published, "_MOST_RUNS", most_runs):
        row_map = published_map(IDENTITY, pieces, edits, committed)
    assert from_bytes(to_bytes(row_map)) == row_map
    files = [piece.path for of in pieces.values() for piece in of] + [edit.path for edit in edits]
    assert set(row_map.output_paths) == set(files)
    origins = expected(case, decision, pieces, edits)
    gone = {*decision.removes, *(edit.source for edit in edits)}
    for (path, row), (source, origin) in origins.items():
        # It leaves the file in this commit.
        assert source in gone or origin in decision.cuts[source].dead
        assert row_map.backward(path, BitMap64([row])) == {source: BitMap64([origin])}
        assert row_map.forward(source, BitMap64([origin])) == {path: BitMap64([row])}
    if files:
        # Others take the commit for a rewrite if the map knows each file that it takes away.
        assert {*decision.removes, *decision.cuts} <= set(row_map.input_paths)
    for path, cut in decision.cuts.items() if case.vectors and files else ():
        taken = span(0, cut.rows) - row_map.input(path).dead
        assert cut.dead == case.view.files[path].dead | taken


def test_a_row_that_an_heir_keeps_is_not_taken_though_its_output_is_not_published() -> None:
    """A bin of one file became two outputs. An update by an edit changed the row of the first;
    vectors were switched on then, so that the edit keeps this row, and the output has none left."""
    builder = RowMapBuilder(IDENTITY)
    builder.add_input("i", 2)
    builder.add_run("i", 0, 1, "o0")
    builder.add_run("i", 1, 2, "o1")
    row_map = builder.build()
    both = np.arange(2)
    heir = Heir("e", (HeirRows("i", both, both),), BitMap64([0]))
    view = View({"e": FileState("e", 2, BitMap64())})
    inputs = [RewriteInput("i", BitMap64(), 2)]
    decision = rewrite(inputs, view, row_map, deletion_vectors=True, heirs=[heir])
    assert decision.outputs == ("o1",)
    assert decision.cuts["e"].dead == BitMap64([1])
    committed = CommittedRewrite(row_map, decision, view)
    found = published_map(IDENTITY, {"o1": [OutputPiece("o1")]}, [], committed)
    assert found.backward("o1", BitMap64([0])) == {"e": BitMap64([1])}
    assert not found.forward("e", BitMap64([0]))


def test_rows_that_an_heir_has_in_another_order_are_mapped_one_by_one() -> None:
    """The output has the rows in the order of the input, the heir in another one."""
    builder = RowMapBuilder(IDENTITY)
    builder.add_input("i", 3)
    builder.add_run("i", 0, 3, "o")
    row_map = builder.build()
    heir = Heir("f", (HeirRows("i", np.arange(3), np.array([2, 0, 1])),), BitMap64())
    view = View({"f": FileState("f", 3, BitMap64())})
    inputs = [RewriteInput("i", BitMap64(), 3)]
    decision = rewrite(inputs, view, row_map, deletion_vectors=False, heirs=[heir])
    committed = CommittedRewrite(row_map, decision, view)
    found = published_map(IDENTITY, {"o": [OutputPiece("o")]}, [], committed)
    assert len(found.runs) == 2
    for row, position in enumerate((1, 2, 0)):
        assert found.backward("o", BitMap64([row])) == {"f": BitMap64([position])}


@pytest.mark.parametrize("most_runs", [published._MOST_RUNS, 0])
def test_each_of_two_heirs_has_its_own_rows_of_an_input(most_runs: int) -> None:
    """The first has row 0 at the position that row 1 had: a row is looked up by its origin."""
    builder = RowMapBuilder(IDENTITY)
    builder.add_input("i", 3)
    builder.add_run("i", 0, 3, "o")
    row_map = builder.build()
    heirs = [
        Heir("f", (HeirRows("i", np.arange(2), np.array([2, 0])),), BitMap64()),
        Heir("g", (HeirRows("i", np.arange(1), np.array([1])),), BitMap64()),
    ]
    view = View({"f": FileState("f", 2, BitMap64()), "g": FileState("g", 1, BitMap64())})
    inputs = [RewriteInput("i", BitMap64(), 3)]
    decision = rewrite(inputs, view, row_map, deletion_vectors=False, heirs=heirs)
    committed = CommittedRewrite(row_map, decision, view)
    with mock.patch.object(published, "_MOST_RUNS", most_runs):
        found = published_map(IDENTITY, {"o": [OutputPiece("o")]}, [], committed)
    for row, at in enumerate((("f", 1), ("g", 0), ("f", 0))):
        assert found.backward("o", BitMap64([row])) == {at[0]: BitMap64([at[1]])}


def test_a_file_in_order_is_described_by_runs_however_it_was_edited() -> None:
    """Also with an heir, and where an edited output became two files: a few numbers."""
    builder = RowMapBuilder(IDENTITY)
    inputs = [RewriteInput(path, BitMap64(), 1_000) for path in "ab"]
    for file in inputs:
        builder.add_input(file.path, file.rows)
        builder.add_run(file.path, 0, file.rows, "o")
    row_map = builder.build()
    kept = np.arange(1_000)[np.arange(1_000) % 7 > 0]
    rows = HeirRows("b", np.arange(len(kept)), kept)
    heir = Heir("e", (rows,), BitMap64([3]))
    view = View(
        {
            "a": FileState("a", 1_000, BitMap64(range(1, 1_000, 3))),
            "e": FileState("e", len(kept), BitMap64()),
        }
    )
    decision = rewrite(inputs, view, row_map, deletion_vectors=False, heirs=[heir])
    hidden = decision.masks["o"]
    pieces = [
        OutputPiece("x", span(0, 1_000) - hidden),
        OutputPiece("y", span(1_000, 2_000) - hidden),
    ]
    committed = CommittedRewrite(row_map, decision, view)
    found = published_map(IDENTITY, {"o": pieces}, [], committed)
    assert len(found.runs) == 2
    assert not found.sorted_groups
    assert found.sources("x") == ("a",)
    assert found.sources("y") == ("e",)
    assert not found.changed  # the heir's values are in the output: no row is another one


# --- Statements ----------------------------------------------------------------------------------


@given(
    st.lists(
        st.integers(1, 6).flatmap(
            lambda rows: st.tuples(
                st.just(rows),
                st.sets(st.integers(0, rows - 1), max_size=rows - 1),
                st.sets(st.integers(0, rows - 1)),
            )
        ),
        min_size=1,
        max_size=3,
    )
)
def test_edits_of_live_files_say_which_rows_have_new_values(
    files: list[tuple[int, set[int], set[int]]],
) -> None:
    edits = []
    for number, (rows, dead, new) in enumerate(files):
        kept = [row for row in range(rows) if row not in dead]
        changed = BitMap64(n for n, row in enumerate(kept) if row in new)
        edits.append(LiveEdit(f"f{number}", rows, BitMap64(dead), f"e{number}", changed))
    row_map = published_map(IDENTITY, {"insert": [OutputPiece("insert")]}, edits)
    assert from_bytes(to_bytes(row_map)) == row_map
    assert set(row_map.output_paths) == {edit.path for edit in edits}
    for edit, (rows, dead, new) in zip(edits, files, strict=True):
        kept = [row for row in range(rows) if row not in dead]
        for number, row in enumerate(kept):
            found = row_map.backward(edit.path, BitMap64([number]))
            assert found == {edit.source: BitMap64([row])}
        changed = row_map.changed.get(edit.path, BitMap64())
        assert {kept[n] for n in changed} == new & set(kept)


@pytest.mark.parametrize("vectors", [True, False])
def test_several_heirs_of_one_input_are_each_the_origin_of_their_rows(vectors: bool) -> None:
    """As after a restore of the files that the input was made from."""
    builder = RowMapBuilder(IDENTITY)
    builder.add_input("a", 4)
    builder.add_run("a", 0, 4, "o")
    row_map = builder.build()
    places = {"f": ([0, 1], [1, 2]), "g": ([0], [0]), "h": ([0], [3])}
    heirs = [
        Heir(path, (HeirRows("a", np.array(rows), np.array(origins)),))
        for path, (rows, origins) in places.items()
    ]
    view = View({path: FileState(path, len(r), BitMap64()) for path, (r, _) in places.items()})
    inputs = [RewriteInput("a", BitMap64(), 4)]
    decision = rewrite(inputs, view, row_map, deletion_vectors=vectors, heirs=heirs)
    committed = CommittedRewrite(row_map, decision, view)
    found = published_map(IDENTITY, {"o": [OutputPiece("o")]}, [], committed)
    assert found.origin("o") == {"f": BitMap64([0, 1]), "g": BitMap64([0]), "h": BitMap64([0])}
    assert found.backward("o", BitMap64([0])) == {"g": BitMap64([0])}
    assert found.backward("o", BitMap64([2])) == {"f": BitMap64([1])}
