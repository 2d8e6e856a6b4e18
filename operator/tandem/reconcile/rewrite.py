"""The rule for rewrites: reconciles a compaction with the commits since its read version.

An input goes as a whole, or is *cut*: the rewrite takes some of its rows, which leave it. For each
input it compares the bitmap of deleted rows now with the one that was read. If the input is gone,
its rows may live on in an *heir*, a file that has rows of inputs alone: it goes in the input's
place, and the outputs take what it has changed. Every call starts from
the bitmaps that were read, so repeated calls at later versions never accumulate masks (I-16, R-3).
A rewrite never changes the set of rows (I-2): the counts are checked before anything may be
published (I-17, R-8).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from pyroaring import BitMap64

from tandem.errors import CountMismatch, RowMapInvalid
from tandem.reconcile.model import FileState, FileView, RowMapLike
from tandem.reconcile.outcomes import FileDeletes
from tandem.reconcile.rules import CUT, REWRITE, InputFate, OutputMask
from tandem.rowmap.run_table import Positions, span, to_array, to_bitmap


@dataclass(frozen=True, slots=True)
class RewriteInput:
    """An input of the plan: physical `rows`, and those that the rewrite left out, since they were
    deleted at the read version. `cut`: the rewrite takes only the rows that are in its map; the
    others stay where they are. `kept` are rows deleted at the read version that the outputs have
    nevertheless, copied with the others: none is left out then."""

    path: str
    dead_at_read: BitMap64
    rows: int
    cut: bool = False
    kept: BitMap64 = field(default_factory=BitMap64)


@dataclass(frozen=True, slots=True)
class HeirRows:
    """Rows of an heir that come from one input: ascending `positions` in the heir, and the
    `origins` of these rows in the input."""

    source: str
    positions: Positions
    origins: Positions


@dataclass(frozen=True, slots=True)
class Heir:
    """A file whose rows all come from inputs; `changed` are those of its rows that have other
    values than the input had."""

    path: str
    rows: tuple[HeirRows, ...]
    changed: BitMap64 = field(default_factory=BitMap64)

    @property
    def sources(self) -> tuple[str, ...]:
        return tuple(each.source for each in self.rows)


@dataclass(frozen=True, slots=True)
class TakenRows:
    """Rows of an output that take their values from a live file: ascending `positions` in the
    output, and for each the row of the file `heir`."""

    heir: str
    positions: Positions
    rows: Positions


@dataclass(frozen=True, slots=True)
class RewriteCounts:
    """`deletes_remapped`: rows deleted since the read version, moved onto outputs; those that were
    deleted before, and copied, do not count. `rows_masked`: rows hidden because their input is no
    longer live or stays live. `inputs_gone`: inputs of which no row is in the outputs any more.
    `bins_contended`: bins that were left as they were."""

    deletes_remapped: int = 0
    rows_masked: int = 0
    inputs_gone: int = 0
    bins_contended: int = 0


@dataclass(frozen=True, slots=True)
class RewriteDecision:
    """What a rewrite commits on top of the version of the view.

    `removes` are inputs and heirs to remove, with their deletion vector *in that version*;
    `outputs` the files to add, each with its `masks`: the rows that are hidden in it. `superseded`:
    nothing is left to commit. `replayed` are the deletes since the read version by the output that
    they were moved onto. `cuts` are inputs that lose the rows that were taken from them, and live
    on with the others. `carried` counts, by output, masked rows that were deleted before the read
    version, and copied. `heirs` are those that go, by path; `new_rows` what outputs take from them;
    `left_alone` are groups of which too little is left to be worth a file.
    """

    removes: tuple[str, ...]
    outputs: tuple[str, ...]
    masks: Mapping[str, BitMap64]
    fates: Mapping[str, InputFate]
    counts: RewriteCounts
    superseded: bool
    replayed: Mapping[str, int] = field(default_factory=dict)
    cuts: Mapping[str, FileDeletes] = field(default_factory=dict)
    carried: Mapping[str, int] = field(default_factory=dict)
    heirs: Mapping[str, Heir] = field(default_factory=dict)
    new_rows: Mapping[str, tuple[TakenRows, ...]] = field(default_factory=dict)
    left_alone: int = 0


Moved = dict[str, tuple[BitMap64, Mapping[str, BitMap64]]]
"""By input, the rows that were looked up last, and their positions in the outputs: so a commit that
deletes in one input does not require a new lookup of the rows of all others. A lookup of other rows
starts from the map again (I-16)."""


def input_fate(planned: RewriteInput, now: FileState | None) -> InputFate:
    """The line of the table that applies to an input.

    Raises: CountMismatch if the file under this path has another number of rows than planned.
    """
    if now is None:
        return InputFate.GONE
    if now.rows != planned.rows:
        raise CountMismatch(
            "The file is not the one that was read",
            resource=planned.path,
            found=f"{now.rows} rows",
            expected=f"{planned.rows} rows",
            remedy="Data files of a Delta table must never be overwritten",
        )
    if now.dead == planned.dead_at_read:
        return InputFate.SAME
    return InputFate.SUPERSET if now.dead.issuperset(planned.dead_at_read) else InputFate.OTHER


def rewrite(
    inputs: Sequence[RewriteInput],
    view: FileView,
    row_map: RowMapLike,
    *,
    deletion_vectors: bool = True,
    moved: Moved | None = None,
    heirs: Sequence[Heir] = (),
    contended: Collection[str] = (),
) -> RewriteDecision:
    """Decide what a rewrite commits on top of the version of `view`.

    `inputs` are the plan's, or those of some of its bins; the map must contain them as they were
    read. `moved` caches, for the next call with the same map, where deleted rows are in the
    outputs. Without `deletion_vectors` rows are hidden by edits: a group of several inputs of
    which one is left, without a deleted row, is left alone.

    Args:
        heirs: live files whose rows all come from inputs that are gone.
        contended: inputs whose group is left as it is.

    Raises:
        RowMapInvalid: the map has other inputs than the plan.
        CountMismatch: rows would be lost or doubled; nothing may be published.
    """
    files = {file.path: file for file in inputs}
    _check_map(files, row_map)
    fates = {path: input_fate(file, view.get(path)) for path, file in files.items()}
    bins = _bins(files, row_map)
    dropped, bins_contended = set[str](), 0
    for members, outputs in bins:
        if not dropped.isdisjoint(members) or any(path in contended for path in members):
            bins_contended += 1
            dropped.update(members, outputs)
    without_heirs, left_alone = fates, 0
    while True:
        taken_heirs = _taken_heirs(heirs, files, without_heirs, dropped, view, row_map)
        inherited = (source for heir in taken_heirs.values() for source in heir.sources)
        fates = {**without_heirs, **dict.fromkeys(inherited, InputFate.HEIR)}
        alone = [
            (members, outputs)
            for members, outputs in bins
            if not deletion_vectors
            and dropped.isdisjoint(members)
            and _is_left_alone(members, files, fates, view)
        ]
        if not alone:
            break
        # Their heirs stay, and with those the rows that they have of other groups.
        left_alone += len(alone)
        for members, outputs in alone:
            dropped.update(members, outputs)
    of_input: dict[str, list[tuple[Heir, HeirRows]]] = {}
    for heir in taken_heirs.values():
        for part in heir.rows:
            of_input.setdefault(part.source, []).append((heir, part))
    masks: dict[str, BitMap64] = {}
    removes: list[str] = []
    cuts: dict[str, FileDeletes] = {}
    new_rows: dict[str, list[TakenRows]] = {}
    remapped = masked = gone = 0
    replayed: dict[str, int] = {}
    carried: dict[str, int] = {}
    for path, file in files.items():
        if path in dropped:
            continue
        mask, takes = _rule(file, fates[path])
        taken = _taken(row_map, path) if file.cut else None
        now = view.get(path)
        if takes and taken is None:
            removes.append(path)
        elif takes and taken is not None:
            assert now is not None
            found = FileDeletes(path, file.rows, now.dead | taken, len(taken - now.dead))
            if found.is_whole:
                removes.append(path)
            elif found.deleted:
                cuts[path] = found
        if mask is OutputMask.DIFFERENCE:
            assert now is not None
            since = now.dead - file.dead_at_read
            if taken is not None:
                since &= taken
            forwarded = _forward(row_map, path, since, moved if moved is not None else {})
            _mask(masks, forwarded, len(since), path)
            remapped += len(since - file.kept)
            for output, positions in forwarded.items():
                replayed[output] = replayed.get(output, 0) + len(positions)
            _carry(carried, row_map, path, since & file.kept)
        elif mask is OutputMask.LEFT_OUT:
            stays = BitMap64()
            for heir, part in of_input[path]:
                rows = _live(heir, part, view)
                if deletion_vectors:  # changed rows stay where they are
                    rows = rows[~_among(part.positions[rows], heir.changed)]
                stays |= to_bitmap(part.origins[rows])
                _replace(new_rows, heir, part, rows, row_map)
            hidden = span(0, file.rows) - row_map.input(path).dead - stays
            forwarded = row_map.forward(path, hidden) if hidden else {}
            _mask(masks, forwarded, len(hidden), path)
            remapped += len(hidden - file.kept)
            _carry(carried, row_map, path, hidden & file.kept)
        elif mask is OutputMask.ALL:
            live = file.rows - len(file.dead_at_read) if taken is None else len(taken)
            _mask(masks, row_map.forward_all(path), live, path)
            masked += live - len(file.kept)
            gone += 1
            _carry(carried, row_map, path, file.kept)
    for path, heir in taken_heirs.items():
        now = view.get(path)
        assert now is not None
        stay = heir.changed - now.dead if deletion_vectors else BitMap64()
        going = now.rows - len(now.dead) - len(stay)
        if not stay:
            removes.append(path)
        elif going:
            cuts[path] = FileDeletes(path, now.rows, span(0, now.rows) - stay, going)
    written = {file.path: file.rows for file in row_map.outputs}
    candidates = [path for _, outputs in bins for path in outputs]
    published = tuple(
        path
        for path in candidates
        if path not in dropped and len(masks.get(path, BitMap64())) < written[path]
    )
    live = sum(written[path] - len(masks.get(path, BitMap64())) for path in published)
    _check_counts(removes, cuts, view, live)
    return RewriteDecision(
        removes=tuple(removes),
        outputs=published,
        masks={path: masks[path] for path in published if path in masks},
        fates=fates,
        counts=RewriteCounts(remapped, masked, gone, bins_contended),
        superseded=not removes and not cuts and not published,
        replayed={
            path: count - carried.get(path, 0)
            for path, count in replayed.items()
            if count > carried.get(path, 0)
        },
        carried=carried,
        cuts=cuts,
        heirs=taken_heirs,
        new_rows={path: tuple(found) for path, found in new_rows.items()},
        left_alone=left_alone,
    )


def _taken_heirs(
    heirs: Sequence[Heir],
    files: Mapping[str, RewriteInput],
    fates: Mapping[str, InputFate],
    dropped: Collection[str],
    view: FileView,
    row_map: RowMapLike,
) -> dict[str, Heir]:
    """The heirs that go: live, of inputs that are gone alone, and the outputs have each of their
    live rows (R-7), once."""
    found: dict[str, Heir] = {}
    claimed: dict[str, BitMap64] = {}
    for heir in sorted(heirs, key=lambda heir: heir.path):
        now = view.get(heir.path)
        if now is None or heir.path in files or heir.path in found:
            continue
        wanted: dict[str, BitMap64] = {}
        known = 0
        for part in heir.rows:
            file = files.get(part.source)
            fits = file is not None and not file.cut and part.source not in dropped
            if not fits or fates[part.source] is not InputFate.GONE:
                break
            live = _live(heir, part, view)
            known += len(live)
            rows = to_bitmap(part.origins[live])
            if not rows.isdisjoint(row_map.input(part.source).dead):
                break
            if not rows.isdisjoint(claimed.get(part.source, BitMap64())):
                break
            wanted[part.source] = rows
        else:
            if known and known == now.rows - len(now.dead):
                found[heir.path] = heir
                for source, rows in wanted.items():
                    claimed[source] = claimed.get(source, BitMap64()) | rows
    return found


def _live(heir: Heir, part: HeirRows, view: FileView) -> Positions:
    """Indexes of the rows of a part that are live."""
    now = view.get(heir.path)
    assert now is not None
    return np.flatnonzero(~_among(part.positions, now.dead)).astype(np.int64)


def _among(positions: Positions, rows: BitMap64) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which of these ascending positions are in a set."""
    found = np.zeros(len(positions), dtype=np.bool_)
    if rows:
        wanted = to_array(rows)
        at = np.searchsorted(positions, wanted)
        inside = at < len(positions)
        at, wanted = at[inside], wanted[inside]
        found[at[positions[at] == wanted]] = True
    return found


def _replace(
    new_rows: dict[str, list[TakenRows]],
    heir: Heir,
    part: HeirRows,
    rows: Positions,
    row_map: RowMapLike,
) -> None:
    """Let the outputs take the rows of a part that have other values."""
    changed = rows[_among(part.positions[rows], heir.changed)]
    if not len(changed):
        return
    outputs, places = row_map.locate(part.source, part.origins[changed])
    for number in np.unique(outputs).tolist():
        chosen = np.flatnonzero(outputs == number)
        chosen = chosen[np.argsort(places[chosen], kind="stable")]
        found = TakenRows(heir.path, places[chosen], part.positions[changed[chosen]])
        new_rows.setdefault(row_map.outputs[number].path, []).append(found)


def _is_left_alone(
    members: Sequence[str],
    files: Mapping[str, RewriteInput],
    fates: Mapping[str, InputFate],
    view: FileView,
) -> bool:
    """Whether one of several inputs is left, and has no deleted row: a file of it alone would be a
    copy."""
    if len(members) < 2 or any(files[path].cut for path in members):
        return False
    left = [path for path in members if REWRITE[fates[path]].mask is not OutputMask.ALL]
    if len(left) != 1:
        return False
    now = view.get(left[0])
    return now is None or not now.dead


def _rule(file: RewriteInput, fate: InputFate) -> tuple[OutputMask, bool]:
    """What is masked in the outputs, and whether the rows that were taken leave the input."""
    if file.cut:
        return CUT[fate].mask, CUT[fate].mask_input
    return REWRITE[fate].mask, REWRITE[fate].remove_input


def _taken(row_map: RowMapLike, path: str) -> BitMap64:
    """The rows of an input that the outputs have."""
    known = row_map.input(path)
    return span(0, known.rows) - known.dead


def _carry(carried: dict[str, int], row_map: RowMapLike, path: str, rows: BitMap64) -> None:
    for output, positions in (row_map.forward(path, rows) if rows else {}).items():
        carried[output] = carried.get(output, 0) + len(positions)


def _forward(
    row_map: RowMapLike, path: str, since: BitMap64, moved: Moved
) -> Mapping[str, BitMap64]:
    known = moved.get(path)
    if known is None or known[0] != since:
        known = moved[path] = (since, row_map.forward(path, since))
    return known[1]


def _bins(
    files: Mapping[str, RewriteInput], row_map: RowMapLike
) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """The groups of the map that share no row, without those of other inputs."""
    bins = []
    for members, outputs in row_map.bins():
        known = [path in files for path in members]
        if all(known):
            bins.append((members, outputs))
        elif any(known):
            raise RowMapInvalid(
                "Inputs were rewritten together although the plan separates them",
                resource=", ".join(outputs),
                found=", ".join(members),
                expected="all of them, or none, among the inputs",
            )
    return bins


def _check_map(files: Mapping[str, RewriteInput], row_map: RowMapLike) -> None:
    for path, file in files.items():
        if path not in row_map.input_paths:
            raise RowMapInvalid("The row map does not know an input of the plan", resource=path)
        known = row_map.input(path)
        # In the map of an input that is cut, rows that stay count as dead.
        as_read = (
            known.dead.issuperset(file.dead_at_read)
            if file.cut
            else known.dead == file.dead_at_read
        )
        if known.rows != file.rows or not as_read:
            raise RowMapInvalid(
                "The input was not in the planned state when it was rewritten",
                resource=path,
                found=f"{known.rows} rows, {len(known.dead)} deleted",
                expected=f"{file.rows} rows, {len(file.dead_at_read)} deleted",
            )


def _mask(
    masks: dict[str, BitMap64], forwarded: Mapping[str, BitMap64], expected: int, path: str
) -> None:
    """Add rows to the masks; each of `expected` rows must land where no other row did."""
    added = 0
    for output, positions in forwarded.items():
        mask = masks.setdefault(output, BitMap64())
        before = len(mask)
        mask |= positions  # in place: many inputs have rows in the same outputs
        added += len(mask) - before
    if added != expected:
        raise CountMismatch(
            "Some deleted rows were not found in the outputs",
            resource=path,
            found=f"{added} rows",
            expected=f"{expected} rows",
            remedy="Nothing was published; the rewrite must be done again",
        )


def _check_counts(
    removes: Sequence[str], cuts: Mapping[str, FileDeletes], view: FileView, published: int
) -> None:
    """I-2, I-57: as many live rows are added as leave the inputs."""
    going = sum(cut.deleted for cut in cuts.values())
    for path in removes:
        now = view.get(path)
        assert now is not None
        going += now.rows - len(now.dead)
    if going != published:
        raise CountMismatch(
            "A rewrite must not change the number of rows",
            found=f"{published} rows in outputs",
            expected=f"{going} live rows that leave the inputs",
            remedy="Nothing was published; the rewrite must be done again",
        )
