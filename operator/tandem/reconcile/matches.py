"""The rows that a statement matched, and where the job wrote their new contents.

Kept as sorted arrays by file: a statement may match many millions of rows, so nothing here
loops over rows in Python. Results are checked on arrival: a job that reports a row twice, or a row
outside its request, must not be able to publish it.

Row tracing: which rows of a later version are rows that were live at S, the version at which
all rows were last evaluated.

A row is followed from its current position, through the row maps of the files that hold it, until
a position that was live at S is found, or until there is no map to follow. Whole files and whole
runs are decided at once; only matched rows are followed individually, and those in arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64

from tandem.distinct import number_rows
from tandem.errors import CountMismatch
from tandem.reconcile.model import FileView, Prefetching, RowMapLike, RowMaps
from tandem.rowmap.run_table import Positions, span, to_array, to_bitmap

KEPT = -2
"""The output of a row that a merge matched and leaves unchanged."""


@dataclass(frozen=True, slots=True)
class InsertFile:
    """A file of ours with the new contents of updated rows: its path and physical rows."""

    path: str
    rows: int


@dataclass(frozen=True, slots=True)
class FileMatches:
    """Matched positions of one file, ascending. For an update, the new contents of row k are row
    `output_positions[k]` of insert file number `outputs[k]`; for a delete both are -1. Only a
    merge has both in one file. `sources`, if the merge recorded them, has two hashes of the source
    row that matched row k; (0, 0) for none. Then matched rows that stay are included, too."""

    positions: Positions
    outputs: Positions
    output_positions: Positions
    sources: npt.NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.positions)

    def only(self, indexes: Positions, positions: Positions | None = None) -> FileMatches:
        """These of the matches, with new positions if given."""
        return FileMatches(
            self.positions[indexes] if positions is None else positions,
            self.outputs[indexes],
            self.output_positions[indexes],
            None if self.sources is None else self.sources[indexes],
        )


Matches = Mapping[str, FileMatches]


@dataclass(frozen=True, slots=True)
class RoundResult:
    """The result of a round of a statement job; insert files are numbered within the round.

    Of a merge (`merged`) some rows may be deleted and others updated, and `fresh` are files of
    rows that replace no row: no match refers to them. `recorded`: all matches have their
    `sources`.
    """

    matches: Matches = field(default_factory=dict)
    inserts: tuple[InsertFile, ...] = ()
    fresh: tuple[InsertFile, ...] = ()
    merged: bool = False
    recorded: bool = False


def round_result(
    table: pa.Table,
    inputs: Sequence[str],
    inserts: Sequence[InsertFile],
    *,
    fresh: Sequence[InsertFile] = (),
    merged: bool = False,
) -> RoundResult:
    """Build the result from the job's `matches` (`tandem.jobs.results.JobResult`): `input` is an
    index into `inputs`, the paths that the round evaluated; `output` is an index into the insert
    files, without the fresh ones. With columns `source_1` and `source_2` sources are recorded.
    Raises: CountMismatch."""
    which = table["input"].to_numpy().astype(np.int64)
    positions = table["position"].to_numpy().astype(np.int64)
    outputs = table["output"].fill_null(-1).to_numpy().astype(np.int64)
    places = table["output_position"].fill_null(-1).to_numpy().astype(np.int64)
    if len(which) and (which.min() < 0 or which.max() >= len(inputs)):
        raise _wrong("A match is in a file that is not part of the round", int(which.max()))
    recorded = "source_1" in table.column_names
    sources = None
    if recorded:
        hashes = [table[name].fill_null(0).to_numpy() for name in ("source_1", "source_2")]
        sources = np.stack(hashes, axis=1).astype(np.int64)
    all_ = FileMatches(positions, outputs, places, sources)
    found = {
        inputs[index]: joined([all_.only(chosen)], inputs[index])
        for index, chosen in _groups(which)
    }
    result = RoundResult(found, tuple(inserts), tuple(fresh), merged, recorded)
    check_result(result)
    return result


def joined(parts: Sequence[FileMatches], path: str) -> FileMatches:
    """Join the matches of one file. Raises: CountMismatch if a row occurs in two parts."""
    positions = np.concatenate([part.positions for part in parts])
    order = np.argsort(positions, kind="stable")
    positions = positions[order]
    if len(positions) > 1 and bool((positions[1:] == positions[:-1]).any()):
        raise CountMismatch(
            "A row has two results",
            resource=path,
            remedy="Nothing was published; the statement must be executed again",
        )
    sources = [part.sources for part in parts if part.sources is not None]
    return FileMatches(
        positions,
        np.concatenate([part.outputs for part in parts])[order],
        np.concatenate([part.output_positions for part in parts])[order],
        np.concatenate(sources)[order] if len(sources) == len(parts) else None,
    )


def check_result(result: RoundResult) -> None:
    """Check that every insert row belongs to at most one match (of a merge, exactly one), and that
    every match refers to an insert file and row that exist.

    Raises: CountMismatch.
    """
    inserts = result.inserts
    for path, found in result.matches.items():
        if result.recorded and found.sources is None:
            raise _wrong("A match has no record of its source row", path)
        if (found.outputs == KEPT).any() and not (result.recorded and result.merged):
            raise _wrong("Only a merge that records matches reports rows that stay", path)
    outputs, places = _placed(result.matches, mixed=result.merged)
    if len(outputs):
        _check_places(outputs, places, inserts)
    if not result.merged and result.fresh:
        raise _wrong("Only a merge inserts rows that it did not find", result.fresh[0].path)
    if result.merged:
        paths = [file.path for file in (*inserts, *result.fresh)]
        if len(set(paths)) != len(paths):
            raise _wrong("A merge names a file twice", len(paths))
        written = sum(file.rows for file in inserts)
        check_merge(result.matches, count(result.matches), len(outputs), written)


def check_part(result: RoundResult, requested: Mapping[str, BitMap64]) -> None:
    """Check that a round on these rows of some files has matches in no other rows.

    Raises: CountMismatch.
    """
    check_result(result)
    for path, found in result.matches.items():
        if not to_bitmap(found.positions).issubset(requested.get(path, BitMap64())):
            raise _wrong("A round returned rows that were not requested", path)
    if result.fresh:
        raise _wrong("A round on some rows inserted what it did not find", result.fresh[0].path)


def _check_places(outputs: Positions, places: Positions, inserts: Sequence[InsertFile]) -> None:
    sizes = np.array([file.rows for file in inserts], dtype=np.int64)
    if outputs.max() >= len(inserts) or (outputs < 0).any():
        raise _wrong("A match points to an insert file that is not there", int(outputs.max()))
    if (places < 0).any() or (places >= sizes[outputs]).any():
        raise _wrong("A match points beyond its insert file", int(places.max()))
    starts = np.cumsum(sizes) - sizes
    if len(np.unique(starts[outputs] + places)) != len(places):
        raise _wrong("Two matches share an insert row", len(places))


def check_merge(matches: Matches, deleted: int, inserted: int, written: int) -> None:
    """Check that a merge deletes all matched rows and inserts the updated ones, and that no row of
    the `written` ones is left over, unless rows were lost meanwhile.

    Raises: CountMismatch.
    """
    updated = len(_placed(matches, mixed=True)[0])
    if deleted != count(matches) or not updated == written == inserted:
        raise CountMismatch(
            "A merge must delete all rows that it matched, and insert as many as it updates",
            found=f"{deleted} deleted, {inserted} of {written} inserted",
            expected=f"{count(matches)} deleted, {updated} inserted",
            remedy="Nothing was published; the statement must be executed again",
        )


def used_inserts(matches: Matches, inserts: Sequence[InsertFile]) -> list[Positions]:
    """For each insert file the rows that matches still refer to."""
    outputs, places = _placed(matches, mixed=True)
    used = [np.empty(0, dtype=np.int64)] * len(inserts)
    for index, chosen in _groups(outputs):
        used[index] = places[chosen]
    return used


def count(matches: Matches) -> int:
    """How many rows are deleted or updated, without those that only matched."""
    if not matches:
        return 0
    return int((np.concatenate([found.outputs for found in matches.values()]) != KEPT).sum())


def select(found: FileMatches, wanted: BitMap64) -> Positions:
    """Indexes of the matches that lie in a bitmap of positions."""
    inside = to_bitmap(found.positions) & wanted
    return np.searchsorted(found.positions, to_array(inside)).astype(np.int64)


def _groups(keys: Positions) -> Iterator[tuple[int, Positions]]:
    """Each distinct key, and the indexes of its occurrences."""
    order = np.argsort(keys, kind="stable").astype(np.int64)
    found, starts = np.unique(keys[order], return_index=True)
    yield from zip(found.tolist(), np.split(order, starts[1:]), strict=bool(len(found)))


def _placed(matches: Matches, *, mixed: bool) -> tuple[Positions, Positions]:
    """(insert file, row) of every match of an update; `mixed`: leave out deleted rows."""
    none = np.empty(0, dtype=np.int64)
    outputs = np.concatenate([none, *(m.outputs for m in matches.values())])
    places = np.concatenate([none, *(m.output_positions for m in matches.values())])
    if mixed:
        acting = (outputs != KEPT) | (places != -1)
        outputs, places = outputs[acting], places[acting]
    if len(outputs) and bool((outputs == -1).all()):
        return none, none
    if mixed:
        updated = (outputs != -1) | (places != -1)
        return outputs[updated], places[updated]
    return outputs, places


def _wrong(message: str, found: object) -> CountMismatch:
    return CountMismatch(
        message,
        field="matches",
        found=found,
        remedy="Nothing was published; the statement must be executed again",
    )


# The source rows that a merge matched, to decide whether its inserts are still right.
#
# A source row is identified by its content: two hashes, the same in every round since the source
# is pinned (`tandem.spark.jobs.merge_source`). Rows of equal content count as one: they match the
# same rows, and a row of the table that two of them match has no record at all.


Sources = npt.NDArray[np.int64]
"""Distinct source rows, ascending: shape (rows, 2)."""


def matched_sources(matches: Matches) -> Sources:
    """The source rows that match some row, whichever clause applied to it."""
    none = np.empty((0, 2), dtype=np.int64)
    found = np.concatenate([none, *(f.sources for f in matches.values() if f.sources is not None)])
    found = found[found.any(axis=1)]
    found = found[np.argsort(found[:, 0])]
    equal = found[1:, 0] == found[:-1, 0]
    if (equal & (found[1:, 1] != found[:-1, 1])).any():
        # Only if two contents share the first hash: sorting by both takes ten times as long.
        found = found[np.lexsort((found[:, 1], found[:, 0]))]
    first = np.ones(len(found), dtype=bool)
    first[1:] = (found[1:] != found[:-1]).any(axis=1)
    distinct: Sources = found[first]
    return distinct


def unmatched_sources(identities: Sources, matched: Sources) -> npt.NDArray[np.int64]:
    """The indexes of the source rows, in any order and perhaps repeated, that match no row."""
    numbers, _ = number_rows([*np.concatenate([identities, matched]).T])
    known = np.isin(numbers[: len(identities)], numbers[len(identities) :])
    return np.flatnonzero(~known).astype(np.int64)


def same_sources(a: Sources, b: Sources) -> bool:
    return bool(np.array_equal(a, b))


def without_unchanged_rows(matches: Matches) -> Mapping[str, FileMatches]:
    """The matches without rows that matched and stay unchanged."""
    found = {}
    for path, of_file in matches.items():
        indexes = np.flatnonzero(of_file.outputs != KEPT)
        if len(indexes) == len(of_file):
            found[path] = of_file
        elif len(indexes):
            found[path] = of_file.only(indexes)
    return found


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
