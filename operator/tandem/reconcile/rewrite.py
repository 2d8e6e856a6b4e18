"""The rule for rewrites: reconciles a compaction with the commits since its read version.

For each input it compares the bitmap of deleted rows now with the one that was read. Every call
starts from the bitmaps that were read, so repeated calls at later versions never accumulate masks
(I-16). A rewrite never changes the set of rows (I-2): the counts are checked before anything may be
published (I-17).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyroaring import BitMap64

from tandem.errors import CountMismatch, RowMapInvalid
from tandem.reconcile.model import FileState, FileView, RowMapLike
from tandem.reconcile.rules import REWRITE, InputFate, Mask


@dataclass(frozen=True, slots=True)
class RewriteInput:
    """An input of the plan: physical `rows`, and those deleted at the read version."""

    path: str
    dead_at_read: BitMap64
    rows: int


@dataclass(frozen=True, slots=True)
class RewriteCounts:
    """`deletes_remapped`: rows deleted since the read version, moved onto outputs.
    `rows_masked`: rows masked because their input is no longer live or stays live.
    `rows_published`: live rows of the outputs, equal to those of the removed inputs."""

    deletes_remapped: int = 0
    rows_masked: int = 0
    bins_dropped: int = 0
    rows_published: int = 0


@dataclass(frozen=True, slots=True)
class RewriteDecision:
    """What a rewrite commits on top of the version of the view.

    `removes` are inputs to remove, with their deletion vector *in that version*; `outputs` the
    files to add, each with its `masks` as its initial deletion vector; `dropped_outputs` have no
    live row, or belong to a dropped bin. `still_live` are inputs that stay live although they were
    rewritten. `superseded`: nothing is left to commit. `replayed` are the deletes since the read
    version by the output that they were moved onto.
    """

    removes: tuple[str, ...]
    outputs: tuple[str, ...]
    masks: Mapping[str, BitMap64]
    dropped_outputs: tuple[str, ...]
    still_live: tuple[str, ...]
    fates: Mapping[str, InputFate]
    counts: RewriteCounts
    superseded: bool
    replayed: Mapping[str, int] = field(default_factory=dict)


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
) -> RewriteDecision:
    """Decide what a rewrite commits on top of the version of `view`.

    `inputs` are the plan's, or those of some of its bins; the map must contain them as they were
    read. Without `deletion_vectors` bins with a changed input are dropped and the others commit.
    `moved` caches, for the next call with the same map, where deleted rows are in the outputs.

    Raises:
        RowMapInvalid: the map has other inputs than the plan.
        CountMismatch: rows would be lost or doubled; nothing may be published.
    """
    files = {file.path: file for file in inputs}
    _check_map(files, row_map)
    fates = {path: input_fate(file, view.get(path)) for path, file in files.items()}
    bins = _bins(files, row_map)
    dropped: set[str] = set()
    bins_dropped = 0
    if not deletion_vectors:
        for members, outputs in bins:
            if any(REWRITE[fates[path]].needs_vectors for path in members):
                bins_dropped += 1
                dropped.update(members, outputs)
    masks: dict[str, BitMap64] = {}
    removes: list[str] = []
    remapped = masked = 0
    replayed: dict[str, int] = {}
    for path, file in files.items():
        if path in dropped:
            continue
        rule = REWRITE[fates[path]]
        if rule.remove_input:
            removes.append(path)
        if rule.mask is Mask.DIFFERENCE:
            now = view.get(path)
            assert now is not None
            since = now.dead - file.dead_at_read
            forwarded = _forward(row_map, path, since, moved if moved is not None else {})
            _mask(masks, forwarded, len(since), path)
            remapped += len(since)
            for output, positions in forwarded.items():
                replayed[output] = replayed.get(output, 0) + len(positions)
        elif rule.mask is Mask.ALL:
            live = file.rows - len(file.dead_at_read)
            _mask(masks, row_map.forward_all(path), live, path)
            masked += live
    rows = {file.path: file.rows for file in row_map.outputs}
    candidates = [path for _, outputs in bins for path in outputs]
    published = tuple(
        path
        for path in candidates
        if path not in dropped and len(masks.get(path, BitMap64())) < rows[path]
    )
    live = sum(rows[path] - len(masks.get(path, BitMap64())) for path in published)
    _check_counts(removes, view, live)
    return RewriteDecision(
        removes=tuple(removes),
        outputs=published,
        masks={path: masks[path] for path in published if path in masks},
        dropped_outputs=tuple(path for path in candidates if path not in published),
        still_live=tuple(
            path
            for path, found in fates.items()
            if found is not InputFate.GONE and path not in removes
        ),
        fates=fates,
        counts=RewriteCounts(remapped, masked, bins_dropped, live),
        superseded=not removes and not published,
        replayed=replayed,
    )


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
        if known.rows != file.rows or known.dead != file.dead_at_read:
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


def _check_counts(removes: Sequence[str], view: FileView, published: int) -> None:
    """I-2: as many live rows are added as removed."""
    going = 0
    for path in removes:
        now = view.get(path)
        assert now is not None
        going += now.rows - len(now.dead)
    if going != published:
        raise CountMismatch(
            "A rewrite must not change the number of rows",
            found=f"{published} rows in outputs",
            expected=f"{going} live rows in the inputs removed",
            remedy="Nothing was published; the rewrite must be done again",
        )
