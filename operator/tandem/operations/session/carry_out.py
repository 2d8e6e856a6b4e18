"""Carries a change set out by edits, where the table has deletion vectors off at the version that
the commit follows (docs/decisions/0191).

A kind decides which rows of which files are hidden or get new values, whatever the table allows.
With vectors on, `commit_actions` writes these. Without, each such file is made again, as an edit:
an output takes the place of what the job wrote, a live file that of itself, in its segment.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Final

import numpy as np
from pyroaring import BitMap64

from tandem.delta.actions import BASE_ROW_ID, ROW_COMMIT_VERSION, AddFile, ChangeFile
from tandem.delta.log.snapshot import IDENTITY
from tandem.errors import CountMismatch, ManifestInvalid
from tandem.jobs.formats import InputFile, RoundRequest, SideFileRef
from tandem.jobs.results import OutputFile
from tandem.jobs.runner import SMALL_BYTES
from tandem.operations import attempt_files
from tandem.operations.explain import of_edits
from tandem.operations.machine.events import Verdict
from tandem.operations.model import CommitContent, Decision, OutputFileChange, Work
from tandem.reconcile.published import LiveEdit, OutputPiece, published_map
from tandem.rowmap import binary_format
from tandem.rowmap.rowmap import MapOutput, RowMapIdentity
from tandem.rowmap.run_table import span, to_array, to_bitmap
from tandem.spark.jobs.edits import ReplacedRows, WantedEdit, encoded_round, wanted_of
from tandem.text import counted
from tandem.timeline.chunks import TAG_MASKED, format_masked, parse_masked
from tandem.timeline.segments import successor_tags

MOST_HERE: Final = SMALL_BYTES
"""Bytes of the files that are edited in one round, at most, for the engine to make the edits."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A file that a change set asks for: the rows `kept` of another one. `edit`: how it is made;
    None: it is the file that the job wrote."""

    change: OutputFileChange
    kept: BitMap64
    edit: WantedEdit | None


def make_edits(work: Work) -> bool:
    """Make the edits that the change set asks for and that do not exist. Returns whether there
    were any. Raises: DataFileMissing, StorageError, CountMismatch."""
    missing = _missing(work)
    if not missing:
        return False
    _count(work, missing)
    work.edits.make(missing)
    return True


def round_of_edits(work: Work) -> RoundRequest | None:
    """A round in which the job's driver makes the edits that do not exist, if they are many bytes,
    and it serves rounds. Raises: StorageError."""
    plan, spec = work.frozen
    missing = _missing(work)
    if sum(each.source.size for each in missing) <= MOST_HERE or not spec.job.serves_rounds:
        return None
    number = max(work.results) + 1
    inputs, new, edits = encoded_round(missing)
    if new:
        digest = hashlib.sha256(new).hexdigest()
        # Another driver of the attempt may ask for other edits in the same round.
        name = f"edits-{digest[:16]}.arrow"
        path = attempt_files.round_file(plan.operation_id, plan.attempt, number, name)
        work.table.store.put(path, new)
        edits = edits.model_copy(
            update={"new": SideFileRef(path=path, size=len(new), sha256=digest)}
        )
    _count(work, missing)
    return RoundRequest(
        operation_id=plan.operation_id,
        attempt=plan.attempt,
        round=number,
        table_version=work.snapshot.version,
        inputs=inputs,
        edits=edits,
    )


def load_edits(work: Work, round_: int, *, seconds: float = 0.0) -> None:
    """Take over the edits that the job's driver made in a round. Raises: ManifestInvalid."""
    request, result = work.requests[round_], work.results[round_]
    wanted = wanted_of(request, work.read)
    expected = [each.source.rows - len(each.drops) for each in wanted]
    if [output.rows for output in result.outputs] != expected:
        raise ManifestInvalid(
            "a round of edits has not made what was asked for",
            resource=attempt_files.rounds(result.operation_id, result.attempt),
            field="outputs",
            found=f"{sum(o.rows for o in result.outputs)} rows in {len(result.outputs)} files",
            expected=f"{sum(expected)} rows in {len(expected)} files",
            remedy="Nothing was published; run the operation again",
        )
    work.edits.add(
        wanted,
        result.outputs,
        copied=result.bytes_copied,
        encoded=result.bytes_encoded,
        seconds=seconds,
    )


def _count(work: Work, missing: Sequence[WantedEdit]) -> None:
    work.edit_attempts = work.edit_attempts.after_round(sum(each.source.size for each in missing))


def too_late(work: Work, change: CommitContent) -> Decision | None:
    """The verdict if the files that the commit edits change too fast for that, again and again;
    None to go on."""
    most, attempts, edits = change.most_lost_edits, work.edit_attempts, work.edits
    if most is None or attempts.counted < most or not _missing(work, change):
        return None
    read = work.frozen[0].read_version
    remedy = "Enable deletion vectors, or run" if work.by_edits else "Run"
    why = (
        f"{counted(attempts.counted, 'round')} of edits made no progress: a round took "
        f"{edits.seconds / max(1, edits.rounds):.1f} s, and the last files changed again in the "
        f"meantime ({counted(work.snapshot.version - read, 'commit')} since version {read}). "
        f"{remedy} it again at a time with fewer writes"
    )
    return Decision(Verdict.CONFLICT, why)


def needs_edits(work: Work, change: CommitContent) -> bool:
    """Whether a commit may ask for edits, or names change files."""
    return work.by_edits or bool(change.changes)


def _missing(work: Work, change: CommitContent | None = None) -> list[WantedEdit]:
    """The edits and change files that a change set asks for, and that do not exist."""
    change = change or work.change
    assert change is not None
    parts = [*_outputs(change), *_marked(change)] if work.by_edits else []
    wanted = [part.edit for part in parts if part.edit is not None]
    return work.edits.missing([*wanted, *change.changes])


def change_files(work: Work, change: CommitContent) -> list[ChangeFile]:
    """The change files that a commit names, all of which exist."""
    files = [_made(work, each) for each in change.changes]
    return [ChangeFile(file.path, file.partition_values, file.size) for file in files]


def by_edits(work: Work, change: CommitContent) -> CommitContent:
    """The change set with edits, all of which exist, in place of hidden rows and new values; and
    with the row map of its commit. One that has them already is the same: an effect whose answer
    was lost is performed again."""
    if change.is_carried_out:
        return change
    outputs: list[OutputFileChange] = []
    pieces: dict[str, list[OutputPiece]] = {}
    for part in _outputs(change):
        path = part.change.add.logged_path
        if part.edit is None:
            pieces[path] = [OutputPiece(path)]
            outputs.append(part.change)
            continue
        file = _made(work, part.edit)
        pieces.setdefault(path, []).append(OutputPiece(file.path, part.kept))
        outputs.append(_output(part.change.add, file))
    removes, edits = list(change.removes), list[LiveEdit]()
    plan, _ = work.frozen
    map_path = attempt_files.row_map(plan.operation_id, plan.attempt)
    for part in _marked(change):
        assert part.edit is not None
        file, of = _made(work, part.edit), part.change
        add = of.add if of.tags is None else replace(of.add, tags=of.tags)
        removes.append(of.add)
        tags = successor_tags(add, row_map=map_path)
        outputs.append(_output(add, file, _with_hint(tags, part.edit.drops)))
        edits.append(
            LiveEdit(add.logged_path, of.rows, part.edit.drops, file.path, _changed(part.edit))
        )
    made = work.edits
    row_map = change.row_map
    is_edited = edits or any(p.path != path for path, ps in pieces.items() for p in ps)
    if is_edited or _takes_heirs(change):
        row_map = _row_map(work, change, pieces, edits, outputs)
    said = of_edits(made.files, made.rounds, made.bytes_copied, made.bytes_encoded)
    return replace(
        change,
        summary=(*change.summary, said) if made.rounds else change.summary,
        outputs=tuple(outputs),
        removes=tuple(removes),
        marked=(),
        row_map=row_map,
        is_carried_out=True,
        reconciled=change.reconciled.model_copy(
            update={
                "edit_rounds": made.rounds or None,
                "bytes_copied": made.bytes_copied or None,
                "bytes_encoded": made.bytes_encoded or None,
            }
        ),
    )


def by_vectors(work: Work, change: CommitContent) -> CommitContent:
    """The change set with the row map of its commit, where deletion vectors hide rows: the map of
    what the job wrote does not know heirs (R-5)."""
    if not _takes_heirs(change):
        return change
    pieces = {
        output.add.logged_path: [OutputPiece(output.add.logged_path)] for output in change.outputs
    }
    return replace(change, row_map=_row_map(work, change, pieces, [], change.outputs))


def _takes_heirs(change: CommitContent) -> bool:
    return change.rewrite is not None and bool(change.rewrite.decision.heirs)


def _row_map(
    work: Work,
    change: CommitContent,
    pieces: Mapping[str, Sequence[OutputPiece]],
    edits: Sequence[LiveEdit],
    outputs: Sequence[OutputFileChange],
) -> bytes:
    """The map of a commit that adds `outputs`, as bytes."""
    if not outputs:
        return b""
    plan, _ = work.frozen
    identity = RowMapIdentity(plan.table_id, plan.operation_id, plan.attempt, plan.read_version)
    published = published_map(identity, pieces, edits, change.rewrite)
    _require_rows(published.outputs, outputs)
    return binary_format.to_bytes(published)


def _outputs(change: CommitContent) -> Iterator[_Part]:
    for output in change.outputs:
        for kept, edit in edits_of(output):
            yield _Part(output, kept, edit)


def edits_of(output: OutputFileChange) -> Iterator[tuple[BitMap64, WantedEdit | None]]:
    """The files that an output becomes: the rows of each, and how it is made."""
    rows = span(0, output.rows)
    hidden = output.dead or BitMap64()
    if not (hidden or output.new or output.cut_at):
        yield rows, None
        return
    for start, end in pairwise((0, *output.cut_at, output.rows)):
        kept = span(start, end) - hidden
        if kept:
            yield kept, _edit(output, rows - kept, (start, end) if output.cut_at else None)


def _marked(change: CommitContent) -> Iterator[_Part]:
    for file in change.marked:
        dead = file.dead or BitMap64()
        yield _Part(file, span(0, file.rows) - dead, _edit(file, dead))


def _edit(
    file: OutputFileChange, drops: BitMap64, part: tuple[int, int] | None = None
) -> WantedEdit:
    add = file.add
    source = InputFile(
        logged_path=add.logged_path,
        size=add.size,
        rows=file.rows,
        partition_values=dict(add.partition_values),
        base_row_id=add.extra.get(BASE_ROW_ID),
        row_commit_version=add.extra.get(ROW_COMMIT_VERSION),
    )
    new = file.new
    if part is not None:
        new = tuple(each for each in (_within(r, *part) for r in new) if len(each.positions))
    return WantedEdit(source, drops, new, file.columns, part)


def _within(new: ReplacedRows, start: int, end: int) -> ReplacedRows:
    first, last = np.searchsorted(new.positions, (start, end)).tolist()
    return replace(new, positions=new.positions[first:last], rows=new.rows[first:last])


def _made(work: Work, wanted: WantedEdit) -> OutputFile:
    found = work.edits.find(wanted)
    if found is None:
        raise CountMismatch(
            "A commit asks for an edit that was not made",
            resource=wanted.source.logged_path,
            remedy="Nothing was published; run the operation again",
        )
    return found


def _with_hint(tags: Mapping[str, str], drops: BitMap64) -> Mapping[str, str]:
    """The tags of an edit: the rows that its source's hint says are hidden are not in it at all."""
    hint = tags.get(TAG_MASKED)
    if hint is None:
        return tags
    masked = parse_masked(hint, len(drops))
    others = {key: value for key, value in tags.items() if key != TAG_MASKED}
    return {**others, TAG_MASKED: format_masked(masked, 0)} if masked else others


def _output(
    like: AddFile, file: OutputFile, tags: Mapping[str, str] | None = None
) -> OutputFileChange:
    add = replace(
        like,
        logged_path=file.path,
        partition_values=dict(like.partition_values),
        size=file.size,
        modified_ms=file.modified_ms,
        stats=file.stats,
        tags=dict(like.tags if tags is None else tags),
        deletion_vector=None,
        # Without what is the old file's own: the log's spelling of its path, and row ids.
        extra={name: value for name, value in like.extra.items() if name not in IDENTITY},
    )
    return OutputFileChange(add, file.rows)


def _changed(edit: WantedEdit) -> BitMap64:
    """The rows of the new file that have other values than the old one's."""
    if not edit.new:
        return BitMap64()
    positions = np.sort(np.concatenate([each.positions for each in edit.new]))
    return to_bitmap(positions - np.searchsorted(to_array(edit.drops), positions))


def _require_rows(mapped: Sequence[MapOutput], outputs: Sequence[OutputFileChange]) -> None:
    """Raises: CountMismatch if the map gives a file another number of rows than it has."""
    rows = {file.path: file.rows for file in mapped}
    for output in outputs:
        expected = rows.get(output.add.logged_path, output.rows)
        if expected != output.rows:
            raise CountMismatch(
                "An edit has another number of rows than its row map",
                resource=output.add.logged_path,
                found=f"{output.rows} rows",
                expected=f"{expected} rows",
                remedy="Nothing was published; run the operation again",
            )
