"""The row map that a commit publishes where it makes files again: edits of outputs, and of live
files.

A published map leads from the files that its commit adds to the files that *the same commit*
removes: to an heir, not to the input whose place it took (R-5). Rows that an edit left out count as
dead, as those do that were dead when read. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from pyroaring import BitMap64

from tandem.reconcile.model import FileView
from tandem.reconcile.rewrite import Heir, HeirRows, RewriteDecision
from tandem.rowmap.rowmap import MapOutput, RowMap, RowMapBuilder, RowMapIdentity
from tandem.rowmap.run_table import Positions, span, to_array, to_bitmap

_MOST_RUNS = 4_096
"""Rows in more runs are written as ranks, four bytes a row."""


@dataclass(frozen=True, slots=True)
class OutputPiece:
    """A file of a commit that holds the rows `kept` of an output, in order; None: all of them."""

    path: str
    kept: BitMap64 | None = None


@dataclass(frozen=True, slots=True)
class LiveEdit:
    """A live file that a commit makes again as the file `path`: without its rows `dead`, and with
    other values in the rows `changed` of the new file."""

    source: str
    rows: int
    dead: BitMap64
    path: str
    changed: BitMap64 = field(default_factory=BitMap64)


@dataclass(frozen=True, slots=True)
class CommittedRewrite:
    """The map of what a job wrote, and what is committed of it on top of the version of `view`."""

    row_map: RowMap
    decision: RewriteDecision
    view: FileView


def published_map(
    identity: RowMapIdentity,
    pieces: Mapping[str, Sequence[OutputPiece]],
    edits: Sequence[LiveEdit],
    rewrite: CommittedRewrite | None = None,
) -> RowMap:
    """The map of a commit.

    Args:
        pieces: the files of each output that is committed, by the output's path.
        edits: live files that are made again; those of a rewrite are inputs that it cut.

    Raises: RowMapInvalid if rows are missing or used twice.
    """
    builder = RowMapBuilder(identity)
    alone = {edit.source: edit for edit in edits}
    if rewrite is not None:
        _add_rewrite(builder, rewrite, pieces, alone)
    for edit in alone.values():
        builder.add_input(edit.source, edit.rows, edit.dead)
        builder.add_run(edit.source, 0, edit.rows, edit.path)
    for edit in edits:
        builder.add_changed(edit.path, edit.changed)
    return builder.build()


def _add_rewrite(
    builder: RowMapBuilder,
    rewrite: CommittedRewrite,
    pieces: Mapping[str, Sequence[OutputPiece]],
    edits: dict[str, LiveEdit],
) -> None:
    """Add the groups of a rewrite, and take the edits of its inputs out of `edits`."""
    row_map, decision = rewrite.row_map, rewrite.decision
    heirs: dict[str, list[tuple[Heir, HeirRows]]] = {}
    for heir in decision.heirs.values():
        for part in heir.rows:
            heirs.setdefault(part.source, []).append((heir, part))
    sorted_files = {index for group in row_map.sorted_groups for index in group.inputs}
    sorted_paths = {row_map.inputs[index].path for index in sorted_files}
    removed = frozenset(decision.removes)
    for members, outputs in _joined(row_map, decision):
        shown = [path for path in outputs if path in pieces]
        if not shown:
            continue
        of_group = {path: heirs[path] for path in members if path in heirs}
        cut = [edits.pop(path) for path in members if path in edits]
        # Where vectors hide rows, the outputs have rows of inputs whose heirs have others.
        hides = any(p in decision.masks and pieces[p][0].kept is None for p in shown)
        # With vectors, heirs keep what they changed: a run would count these rows as taken.
        keeps = any(heir.path in decision.cuts for of in of_group.values() for heir, _ in of)
        in_order = (
            not cut
            and not keeps
            and not (hides and of_group)
            and all(
                path not in sorted_paths
                and (
                    path in removed
                    or path in of_group
                    or not _has_rows(rewrite, path, shown, pieces)
                )
                for path in members
            )
        )
        runs: dict[str, _HeirRuns] = {}
        if in_order:
            runs = {path: _HeirRuns.of(found, rewrite.view) for path, found in of_group.items()}
        if in_order and sum(len(found.starts) for found in runs.values()) <= _MOST_RUNS:
            _add_runs(builder, rewrite, shown, pieces, runs)
        else:
            _add_rows(builder, rewrite, shown, pieces, of_group, cut)
    for path in sorted(removed.difference(builder.input_paths)):
        # A file that goes without a row in any output; the commit is a rewrite all the same.
        now = rewrite.view.get(path)
        assert now is not None
        builder.add_input(path, now.rows, span(0, now.rows))


def _joined(
    row_map: RowMap, decision: RewriteDecision
) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The groups of a map; those that share an heir are one."""
    found: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
    group_of: dict[str, int] = {}
    parent: list[int] = []

    def root(index: int) -> int:
        while parent[index] != index:
            index = parent[index]
        return index

    bins = row_map.bins()
    for number, (members, _) in enumerate(bins):
        parent.append(number)
        group_of.update(dict.fromkeys(members, number))
    for heir in decision.heirs.values():
        roots = sorted({root(group_of[source]) for source in heir.sources})
        for other in roots[1:]:
            parent[other] = roots[0]
    together: dict[int, tuple[list[str], list[str]]] = {}
    for number, (members, outputs) in enumerate(bins):
        group = together.setdefault(root(number), ([], []))
        group[0].extend(members)
        group[1].extend(outputs)
    found.extend((tuple(members), tuple(outputs)) for members, outputs in together.values())
    return found


@dataclass(frozen=True, slots=True)
class _HeirRuns:
    """The rows of an input that its heirs have, in the input's order: ascending `origins`, for each
    the number of the heir in `paths` and the position there. `starts` are the indexes at which
    another heir begins, or a live row of the same one was skipped."""

    paths: tuple[str, ...]
    origins: Positions
    numbers: Positions
    positions: Positions
    starts: Positions

    @classmethod
    def of(cls, heirs: Sequence[tuple[Heir, HeirRows]], view: FileView) -> _HeirRuns:
        positions, origins, numbers, ranks = [], [], [], []
        for index, (heir, part) in enumerate(heirs):
            now = view.get(heir.path)
            assert now is not None
            dead = to_array(now.dead)
            live = ~np.isin(part.positions, dead)
            found = part.positions[live]
            positions.append(found)
            origins.append(part.origins[live])
            numbers.append(np.full(len(found), index, np.int64))
            ranks.append(found - np.searchsorted(dead, found))
        order = np.argsort(np.concatenate(origins), kind="stable")
        number, rank = np.concatenate(numbers)[order], np.concatenate(ranks)[order]
        begins = np.ones(len(order), dtype=bool)
        begins[1:] = (np.diff(number) != 0) | (np.diff(rank) != 1)
        return cls(
            tuple(heir.path for heir, _ in heirs),
            np.concatenate(origins)[order],
            number,
            np.concatenate(positions)[order],
            np.flatnonzero(begins).astype(np.int64),
        )

    def within(self, start: int, end: int) -> list[tuple[str, int, int]]:
        """Path, start and end of the runs for these rows of the input."""
        first, last = np.searchsorted(self.origins, (start, end)).tolist()
        if first == last:
            return []
        inner = self.starts[(self.starts > first) & (self.starts < last)].tolist()
        return [
            (
                self.paths[int(self.numbers[begin])],
                int(self.positions[begin]),
                int(self.positions[until - 1]) + 1,
            )
            for begin, until in pairwise((first, *inner, last))
        ]


def _has_rows(
    rewrite: CommittedRewrite,
    path: str,
    shown: Sequence[str],
    pieces: Mapping[str, Sequence[OutputPiece]],
) -> bool:
    """Whether a file of the commit has rows of an input, hidden ones included."""
    places = rewrite.row_map.forward_all(path)
    for output in shown:
        rows = places.get(output)
        for piece in pieces[output] if rows else ():
            if piece.kept is None or not piece.kept.isdisjoint(rows or BitMap64()):
                return True
    return False


def _add_runs(
    builder: RowMapBuilder,
    rewrite: CommittedRewrite,
    shown: Sequence[str],
    pieces: Mapping[str, Sequence[OutputPiece]],
    heirs: Mapping[str, _HeirRuns],
) -> None:
    """Runs of the job's map, on what of their files is left; a piece ends where a run ends."""
    row_map, view = rewrite.row_map, rewrite.view
    numbers = {row_map.output_number(path) for path in shown}
    runs = sorted(
        (run for run in row_map.runs if run.output in numbers),
        key=lambda run: (run.output, run.out_start),
    )
    known: set[str] = set()
    hidden: dict[str, BitMap64] = {}  # rows that an output has although they are dead
    for path in shown:
        mask = rewrite.decision.masks.get(path)
        if mask and pieces[path][0].kept is None:
            for source, found in row_map.backward(path, mask).items():
                hidden[source] = hidden.get(source, BitMap64()) | found
    for run in runs:
        file = row_map.inputs[run.input]
        rows = run.in_end - run.in_start
        if file.dead:
            rows -= file.dead.range_cardinality(run.in_start, run.in_end)
        output = row_map.outputs[run.output].path
        ends = run.out_start + rows
        piece = next((p for p in pieces[output] if _holds(p, run.out_start, ends)), None)
        if piece is None:
            continue
        parts = [(file.path, run.in_start, run.in_end)]
        if file.path in heirs:
            parts = heirs[file.path].within(run.in_start, run.in_end)
        for source, start, end in parts:
            if source not in known:
                known.add(source)
                now = view.get(source)
                assert now is not None
                dead = now.dead - hidden[source] if source in hidden else now.dead
                builder.add_input(source, now.rows, dead)
            builder.add_run(source, start, end, piece.path)


def _holds(piece: OutputPiece, start: int, end: int) -> bool:
    return piece.kept is None or piece.kept.range_cardinality(start, end) > 0


def _add_rows(
    builder: RowMapBuilder,
    rewrite: CommittedRewrite,
    shown: Sequence[str],
    pieces: Mapping[str, Sequence[OutputPiece]],
    heirs: Mapping[str, Sequence[tuple[Heir, HeirRows]]],
    cut: Sequence[LiveEdit],
) -> None:
    """Each row of the commit's files by its origin: for rows in any order."""
    row_map = rewrite.row_map
    names = {file.path: number for number, file in enumerate(row_map.inputs)}
    paths = [file.path for file in row_map.inputs]
    files: list[tuple[str, Positions, Positions]] = []  # path, origins' files and positions
    for output in shown:
        total = row_map.outputs[row_map.output_number(output)].rows
        for piece in pieces[output]:
            rows = np.arange(total) if piece.kept is None else to_array(piece.kept)
            found, origins = row_map.trace(output, rows)
            codes, positions = found.astype(np.int64), origins.copy()
            for source, of_source in heirs.items():
                here = np.flatnonzero(found == names[source])
                for heir, part in of_source:
                    code = names.setdefault(heir.path, len(paths))
                    if code == len(paths):
                        paths.append(heir.path)
                    kept, places = _followed(origins[here], heir, part, rewrite)
                    codes[here[kept]] = code
                    positions[here[kept]] = places
            files.append((piece.path, codes, positions))
    for edit in cut:
        stays = to_array(span(0, edit.rows) - edit.dead)
        files.append((edit.path, np.full(len(stays), names[edit.source], np.int64), stays))
    _add_group(builder, rewrite.view, row_map, paths, files)


def _followed(
    origins: Positions, heir: Heir, part: HeirRows, rewrite: CommittedRewrite
) -> tuple[Positions, Positions]:
    """Which of these rows of an input an heir has and lets go, by index, and where it has them."""
    now = rewrite.view.get(heir.path)
    assert now is not None
    stays = rewrite.decision.cuts.get(now.path)
    gone = now.dead if stays is None else now.dead | (span(0, now.rows) - stays.dead)
    live = np.ones(len(part.positions), dtype=bool)
    if gone:
        live = ~np.isin(part.positions, to_array(gone))
    order = np.argsort(part.origins[live], kind="stable")
    known, rows = part.origins[live][order], part.positions[live][order]
    at = np.searchsorted(known, origins)
    inside = at < len(known)
    hit = np.zeros(len(origins), dtype=bool)
    hit[inside] = known[at[inside]] == origins[inside]
    return np.flatnonzero(hit).astype(np.int64), rows[at[hit]]


def _add_group(
    builder: RowMapBuilder,
    view: FileView,
    row_map: RowMap,
    paths: Sequence[str],
    files: Sequence[tuple[str, Positions, Positions]],
) -> None:
    codes = np.concatenate([codes for _, codes, _ in files])
    positions = np.concatenate([rows for _, _, rows in files])
    sizes = [len(rows) for _, _, rows in files]
    used = np.flatnonzero(np.bincount(codes, minlength=len(paths))).tolist()
    ranks = np.empty(len(codes), dtype=np.int64)
    for code in used:
        now = view.get(paths[code])
        rows = now.rows if now is not None else row_map.input(paths[code]).rows
        here = np.flatnonzero(codes == code)
        found = positions[here]
        in_order = bool((np.diff(found) > 0).all())
        there = found if in_order else np.sort(found)
        builder.add_input(paths[code], rows, span(0, rows) - to_bitmap(there))
        ranks[here] = np.arange(len(here)) if in_order else np.searchsorted(there, found)
    begins = np.cumsum([0, *sizes])
    is_first = np.ones(len(codes), dtype=bool)
    is_first[1:] = (codes[1:] != codes[:-1]) | (ranks[1:] != ranks[:-1] + 1)
    is_first[begins[:-1][begins[:-1] < len(codes)]] = True
    starts = np.flatnonzero(is_first)
    if len(starts) <= _MOST_RUNS:
        ends = np.append(starts[1:], len(codes))
        owners = np.searchsorted(begins, starts, side="right") - 1
        for start, end, owner in zip(starts.tolist(), ends.tolist(), owners.tolist(), strict=True):
            source = paths[int(codes[start])]
            first, last = int(positions[start]), int(positions[end - 1]) + 1
            builder.add_run(source, first, last, files[owner][0])
        return
    builder.add_sorted(
        [paths[code] for code in used],
        [MapOutput(path, len(rows)) for path, _, rows in files],
        origins=(np.searchsorted(used, codes).astype(np.int64), positions),
        destinations=(
            np.repeat(np.arange(len(files)), sizes),
            np.concatenate([np.arange(size) for size in sizes]),
        ),
    )
