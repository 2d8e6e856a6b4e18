"""Row tracing: which rows of a later version are rows that were live at S, the version at which
all rows were last evaluated.

A row is followed from its current position, through the row maps of the files that hold it, until
a position that was live at S is found, or until there is no map to follow. Whole files and whole
runs are decided at once; only matched rows are followed individually, and those in arrays.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from pyroaring import BitMap64

from tandem.errors import CountMismatch
from tandem.reconcile.matches import FileMatches, Matches, count, joined, select
from tandem.reconcile.model import FileView, Prefetching, RowMapLike, RowMaps
from tandem.rowmap.positions import span


@dataclass(frozen=True, slots=True)
class RewriteStep:
    """One rewrite between S and the current version."""

    row_map: RowMapLike
    source: str
    output: str


@dataclass(frozen=True, slots=True)
class TracedRows:
    """Rows of `source` that were live at S, and the rewrites that carried them to one file.

    `steps` are in commit order; none if the rows have not moved.
    """

    source: str
    positions: BitMap64
    steps: tuple[RewriteStep, ...] = ()


@dataclass(frozen=True, slots=True)
class TracedMatches:
    """The part of the result of S that is still valid at a later version.

    `matches` by files of that version; `unknown` are its live rows that were not live at S, by
    file; `lost` counts matches whose row is no longer live, `moved` those now in another file,
    by file in `moved_to`.
    """

    matches: Matches
    unknown: dict[str, BitMap64] = field(default_factory=dict)
    lost: int = 0
    moved: int = 0
    moved_to: dict[str, int] = field(default_factory=dict)


def trace_matches(
    matches: Matches,
    changed: Iterable[str],
    at_s: FileView,
    now: FileView,
    row_maps: RowMaps,
) -> TracedMatches:
    """Carry the result of S over to a later version.

    `changed` are the files that any commit in between added, removed or gave another deletion
    vector; the work is proportional to them and to the matches in them.

    Raises:
        CountMismatch: a row of S would be in two places.
    """
    changed = frozenset(changed)
    paths = sorted(changed)
    for view in (at_s, now):
        prefetch(view, paths)
    traced: dict[str, list[tuple[str, TracedRows]]] = {}
    unknown: dict[str, BitMap64] = {}
    for path in paths:
        state = now.get(path)
        if state is None:
            continue
        found, rest = trace_rows(path, span(0, state.rows) - state.dead, at_s, row_maps)
        if rest:
            unknown[path] = rest
        for traced_rows in found:
            traced.setdefault(traced_rows.source, []).append((path, traced_rows))
    _check_disjoint(traced, changed, now)
    kept: dict[str, list[FileMatches]] = {}
    moved: dict[str, int] = {}
    for source, of_source in matches.items():
        if source not in changed:
            kept.setdefault(source, []).append(of_source)
            continue
        for path, traced_rows in traced.get(source, ()):
            part = _follow(of_source, traced_rows)
            if len(part):
                kept.setdefault(path, []).append(part)
                if traced_rows.steps:
                    moved[path] = moved.get(path, 0) + len(part)
    # The result of an unchanged file is sorted already, and so is not copied.
    result = {
        path: parts[0] if len(parts) == 1 and parts[0] is matches.get(path) else joined(parts, path)
        for path, parts in kept.items()
    }
    lost = count(matches) - count(result)
    return TracedMatches(result, unknown, lost, sum(moved.values()), moved)


def trace_rows(
    path: str, positions: BitMap64, at_s: FileView, row_maps: RowMaps
) -> tuple[list[TracedRows], BitMap64]:
    """Trace these rows back. Returns the rows that were live at S, and those that were not."""
    state = at_s.get(path)
    here = positions - state.dead if state is not None else BitMap64()
    rest = positions - here if here else positions
    traced = [TracedRows(path, here)] if here else []
    if not rest:
        return traced, rest
    row_map = row_maps.get(path)
    if row_map is None:
        return traced, rest
    # Rows with other values than those that they come from are rows that S did not have.
    unknown = rest & row_map.changed.get(path, BitMap64())
    origins = row_map.backward(path, rest - unknown)
    prefetch(at_s, list(origins))
    for source, rows in origins.items():
        below, lost = trace_rows(source, rows, at_s, row_maps)
        step = RewriteStep(row_map, source, path)
        traced += [TracedRows(t.source, t.positions, (*t.steps, step)) for t in below]
        if lost:
            unknown |= row_map.forward(source, lost)[path]
    return traced, unknown


def prefetch(view: FileView, paths: list[str]) -> None:
    """Make a view over a columnar snapshot look up all of these in one pass."""
    if isinstance(view, Prefetching):
        view.prefetch(paths)


def _follow(found: FileMatches, traced_rows: TracedRows) -> FileMatches:
    """The matches among traced rows, at their positions in the later version."""
    indexes = select(found, traced_rows.positions)
    positions = found.positions[indexes]
    for step in traced_rows.steps:
        outputs, positions = step.row_map.locate(step.source, positions)
        if not bool((outputs == step.row_map.output_number(step.output)).all()):
            raise CountMismatch(
                "A row map leads back from a row but not forward to it",
                resource=step.output,
                remedy="Nothing was published; the row map is wrong",
            )
    order = np.argsort(positions, kind="stable")
    return found.only(indexes[order], positions[order])


def _check_disjoint(
    traced: dict[str, list[tuple[str, TracedRows]]], changed: frozenset[str], now: FileView
) -> None:
    """Check that a row of S has at most one position, whatever other writers committed since."""
    for source, found in traced.items():
        seen = BitMap64()
        if source not in changed:
            state = now.get(source)
            if state is not None:
                seen = span(0, state.rows) - state.dead
        for path, traced_rows in found:
            if not seen.isdisjoint(traced_rows.positions):
                raise CountMismatch(
                    "A row would be in two files at once",
                    resource=path,
                    found=f"{len(seen & traced_rows.positions)} rows of {source}",
                    expected="none",
                    remedy="Nothing was published; look for a writer that adds files twice",
                )
            seen |= traced_rows.positions
