"""A table's history as data: derives entries and the lives of segments from commits. Pure.

Everything here comes from the log, which any writer may fill with anything: unexpected values count
as absent, names are cleaned for display, and numbers are bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from pydantic import ValidationError

from tandem.cli.output import people_time
from tandem.delta.actions import AddFile, Commit, RemoveFile
from tandem.delta.log.snapshot import ENGINE
from tandem.delta.stats import num_records_of
from tandem.reconcile.classify import author_of
from tandem.spec.status import OperationResult
from tandem.spec.update import TableIngest
from tandem.text import clean
from tandem.timeline.lineage import parse_lineage
from tandem.timeline.segments import TAG_PARENTS, TAG_SEGMENT, segment_name

_OURS = ENGINE.partition("/")[0] + "/"
_MOST = 2**53
"""The largest number taken from a commit; larger ones count as unknown."""
_MOST_PARENTS = 64
"""The most removed files that a file of another writer is derived from, since it is unknown which
of them it was made from."""


class EntryKind(StrEnum):
    """What a commit was, as far as a picture distinguishes commits."""

    APPEND = "append"  # only added files
    CHANGE = "change"  # rows were changed, deleted or replaced
    REWRITE = "rewrite"  # the same rows in other files
    OTHER = "other"  # no data: properties, abandonment, an update that matched nothing


class CommitEffect(StrEnum):
    """How an operation reconciled with a commit that was made while it ran."""

    REPLAYED = "replayed"  # deletes, onto the files it had written
    MASKED = "masked"  # rows of an input that was gone or restored
    FOLLOWED = "followed"  # rows to delete, into files that had been rewritten
    EVALUATED = "evaluated"  # rows that were new to a statement
    LOST = "lost"  # rows that a statement had matched
    AGAIN = "again"  # the whole statement, executed again


_PHRASES = {
    CommitEffect.REPLAYED: "{rows} deleted by {version} replayed{onto}",
    CommitEffect.MASKED: "{rows} masked because of {version}",
    CommitEffect.FOLLOWED: "{rows} followed into{onto} of {version}",
    CommitEffect.EVALUATED: "{rows} evaluated because of {version}",
    CommitEffect.LOST: "{rows} deleted or rewritten by {version}",
    CommitEffect.AGAIN: "executed again after {version}",
}


@dataclass(frozen=True, slots=True)
class ConcurrentCommit:
    """An operation and a commit made between its read version and its own. `rows` is the number of
    rows concerned, None if all were (`AGAIN`); `onto` names a segment."""

    version: int
    effect: CommitEffect
    rows: int
    onto: str = ""

    @property
    def phrase(self) -> str:
        """`2,113 deleted by 43 replayed onto 0.1`"""
        onto = ""
        if self.onto:
            onto = f" {self.onto}" if self.effect is CommitEffect.FOLLOWED else f" onto {self.onto}"
        count = f"{self.rows:,} row" + ("" if self.rows == 1 else "s")
        return _PHRASES[self.effect].format(rows=count, version=self.version, onto=onto)


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """One version. `by` is the resource, if it is an operation of ours. Row counts are None if the
    log does not have them; `rows_deleted` counts rows deleted by deletion vectors. `read_version`
    is the version that an operation of ours has read. `batch`: which batch of the resource's
    compaction it is, and of how many."""

    version: int
    time_ms: int
    operation: str
    engine: str
    by: str
    ours: bool
    kind: EntryKind
    files_added: int
    files_removed: int
    files_marked: int
    rows_added: int | None
    rows_removed: int | None
    rows_deleted: int
    read_version: int | None = None
    segments: tuple[str, ...] = ()
    meetings: tuple[ConcurrentCommit, ...] = ()
    batch: tuple[int, int] | None = None
    result: OperationResult = field(default_factory=OperationResult)

    @property
    def summary(self) -> tuple[str, ...]:
        """The lines of its own summary."""
        return tuple(clean(text, 200) for text in (self.result.summary or ())[:16])

    # Short texts, the same on the terminal and on the page.

    @property
    def author(self) -> str:
        """The resource of an operation of ours, or else the engine."""
        return self.by or self.engine or "unknown"

    @property
    def operation_text(self) -> str:
        """Delta's name of the operation; of an ingest also that it is one."""
        if self.by.startswith(f"{TableIngest.kind_name}/"):
            return f"{self.operation} (ingest)"
        return self.operation

    @property
    def files_text(self) -> str:
        """`+1 −20 ~3`: added, removed, and with other deletion vectors."""
        counts = ((self.files_added, "+"), (self.files_removed, "−"), (self.files_marked, "~"))
        return " ".join(f"{sign}{count:,}" for count, sign in counts if count)

    @property
    def rows_text(self) -> str:
        """`+3,000 −12`: rows added and deleted; for a rewrite, how many it rewrote."""
        added, gone = self.rows_added, self.rows_removed
        if self.kind is EntryKind.REWRITE:
            return f"{added:,} rewritten" if added else ""
        removed = (gone or 0) + max(0, self.rows_deleted)
        restored = max(0, -self.rows_deleted)
        parts = [f"+{added:,}"] if added else ["+?"] if added is None else []
        parts += [f"−{removed:,}"] if removed else ["−?"] if gone is None else []
        parts += [f"{restored:,} restored"] if restored else []
        return " ".join(parts)

    @property
    def texts(self) -> tuple[int, str, str, str, str, str, str]:
        """Version, time, operation, author, files, rows and notes: a row of a table."""
        return (
            self.version,
            people_time(self.time_ms),
            self.operation_text,
            self.author,
            self.files_text,
            self.rows_text,
            "; ".join(self.notes),
        )

    @property
    def notes(self) -> list[str]:
        """What it met; of a replace also what it replaced, and what it left: `replaced 2013-03`; of
        a compaction in batches which one it is: `batch 2 of 5`."""
        own = list(self.summary[1:] if self.result.replaced is not None else ())
        if self.batch is not None:
            own.append("batch {} of {}".format(*self.batch))
        return [*own, *(met.phrase for met in self.meetings)]


@dataclass(slots=True)
class SegmentLifetime:
    """A segment: the version that created it (None: before the first) and the one that removed it
    (None: not yet), the segments it was made from, and the rows deleted in it by version.
    `foreign`: a file of another writer."""

    name: str
    foreign: bool
    born: int | None
    ended: int | None = None
    rows: int | None = None
    parents: dict[str, None] = field(default_factory=dict)
    deletes: dict[int, int] = field(default_factory=dict)
    files: set[str] = field(default_factory=set)


def lanes_of(
    works: Iterable[tuple[HistoryEntry, tuple[float, float]]], most: int
) -> list[tuple[HistoryEntry, int]]:
    """A lane for each operation in a picture: the first of `most` that has space from the first to
    the second of its numbers, which may be the end of another one. Operations that met commits
    choose first, newer ones before older ones; those without space are left out."""
    taken: list[list[tuple[float, float]]] = [[] for _ in range(most)]
    found = []
    for work, (start, end) in sorted(works, key=lambda w: (not w[0].meetings, -w[0].version)):
        for lane, spans in enumerate(taken):
            if all(end <= begin or stop <= start for begin, stop in spans):
                spans.append((start, end))
                found.append((work, lane))
                break
    return found


def entries(commits: Sequence[Commit]) -> list[HistoryEntry]:
    """The entries of consecutive commits, oldest first."""
    changes = {commit.version: _Change.of(commit) for commit in commits}
    return [_entry(commit, changes) for commit in commits]


@dataclass(frozen=True, slots=True)
class _Change:
    """A commit's files by path: added ones, removed ones, and those whose deletion vector changed,
    with the number of rows by which it grew (negative if rows were restored)."""

    added: Mapping[str, AddFile]
    gone: Mapping[str, RemoveFile]
    marked: Mapping[str, int]
    names: Mapping[str, str]
    ours: bool

    @classmethod
    def of(cls, commit: Commit) -> _Change:
        adds = {add.logged_path: add for add in commit.adds}
        removes = {gone.logged_path: gone for gone in commit.removes}
        both = adds.keys() & removes.keys()
        return cls(
            added={path: add for path, add in adds.items() if path not in both},
            gone={path: gone for path, gone in removes.items() if path not in both},
            marked={path: _dead(adds[path]) - _dead(removes[path]) for path in both},
            names={path: segment_name(add) for path, add in adds.items()},
            ours=_is_ours(commit),
        )


def _dead(file: AddFile | RemoveFile) -> int:
    return file.deletion_vector.cardinality if file.deletion_vector is not None else 0


def _is_ours(commit: Commit) -> bool:
    return commit.info is not None and commit.info.engine.startswith(_OURS)


def _entry(commit: Commit, changes: Mapping[int, _Change]) -> HistoryEntry:
    mine, author = changes[commit.version], author_of(commit)
    body = _our_part(commit)
    read = body.get("readVersion")
    known = isinstance(read, int) and not isinstance(read, bool) and 0 <= read < commit.version
    read_version = read if known else None
    result = _result(body)
    rows = [num_records_of(add.stats) for add in mine.added.values()]
    lost = [_rows_of(gone) for gone in mine.gone.values()]
    live = sum(row for row in rows if row is not None) - sum(map(_dead, mine.added.values()))
    rows_added = None if None in rows else max(0, live)
    rows_removed = None if None in lost else sum(row for row in lost if row is not None)
    if rows_added is not None and rows_removed is not None:
        moved = _moved_by_edits(result, rows_removed)
        rows_added, rows_removed = max(0, rows_added - moved), rows_removed - moved
    return HistoryEntry(
        version=commit.version,
        time_ms=commit.timestamp_ms,
        operation=author.operation,
        engine=author.engine,
        by=author.by,
        ours=mine.ours,
        kind=_kind(commit, mine),
        files_added=len(mine.added),
        files_removed=len(mine.gone),
        files_marked=len(mine.marked),
        rows_added=rows_added,
        rows_removed=rows_removed,
        rows_deleted=sum(mine.marked.values()),
        read_version=read_version,
        segments=tuple(dict.fromkeys(mine.names[path] for path in mine.added)),
        meetings=_meetings(commit.version, read_version, changes, result),
        batch=_batch(body),
        result=result,
    )


def _our_part(commit: Commit) -> Mapping[str, Any]:
    body = commit.info.body.get("tandem") if commit.info is not None else None
    return body if isinstance(body, Mapping) and _is_ours(commit) else {}


def _batch(body: Mapping[str, Any]) -> tuple[int, int] | None:
    said = body.get("batch")
    if not isinstance(said, Mapping):
        return None
    number, of = said.get("number"), said.get("batches")
    if type(number) is not int or type(of) is not int or not 0 < number <= of < _MOST:
        return None
    return number, of


def _result(body: Mapping[str, Any]) -> OperationResult:
    try:
        return OperationResult.model_validate(body.get("result") or {})
    except ValidationError:
        return OperationResult()


def _moved_by_edits(result: OperationResult, removed: int) -> int:
    """How many rows of the removed files an operation of ours has only put into other files."""
    rows, met = result.rows_affected, result.reconciled
    if rows is None or met is None or not met.edit_rounds:
        return 0
    return min(removed, max(0, removed - rows.updated - rows.deleted))


def _rows_of(gone: RemoveFile) -> int | None:
    """Live rows of a removed file; None if the `remove` does not repeat its statistics."""
    stats = gone.extra.get("stats")
    add = AddFile(gone.logged_path, {}, 0, 0, True, stats=stats if isinstance(stats, str) else None)
    rows = num_records_of(add.stats)
    return None if rows is None else max(0, rows - _dead(gone))


def _kind(commit: Commit, change: _Change) -> EntryKind:
    if not (change.added or change.gone or change.marked):
        return EntryKind.OTHER
    if not (change.gone or change.marked):
        return EntryKind.APPEND
    changes = any(a.data_change for a in commit.adds) or any(r.data_change for r in commit.removes)
    return EntryKind.CHANGE if changes else EntryKind.REWRITE


def _meetings(
    version: int, read: int | None, changes: Mapping[int, _Change], result: OperationResult
) -> tuple[ConcurrentCommit, ...]:
    """The commits that an operation met, from the log and from the operation's own result."""
    if read is None:
        return ()
    mine = changes[version]
    found: dict[tuple[int, CommitEffect], ConcurrentCommit] = {}

    def meet(other: int, effect: CommitEffect, rows: int | None, onto: str = "") -> None:
        if rows and 0 < rows < _MOST and read < other < version:
            known = found.get((other, effect), ConcurrentCommit(other, effect, 0))
            found[other, effect] = replace(known, rows=known.rows + rows, onto=onto or known.onto)

    mets = (result.reconciled.met if result.reconciled else None) or ()
    again = [met.version for met in mets if met.executed_again and read < met.version < version]
    for other in again:
        found[other, CommitEffect.AGAIN] = ConcurrentCommit(other, CommitEffect.AGAIN, 0)
    segments = {mine.names[path] for path in mine.added}
    made = "".join(segments) if len(segments) == 1 else f"{len(segments)} segments"
    # Commits before the last complete execution were read by it.
    for other in range(max(read + 1, min(changes), *(v + 1 for v in again)), version):
        theirs = changes[other]
        for path, deleted in theirs.marked.items():
            if path in mine.gone:
                meet(other, CommitEffect.REPLAYED, deleted, made)
        if theirs.ours:
            for path in theirs.added.keys() & mine.marked.keys():
                if theirs.gone:
                    meet(other, CommitEffect.FOLLOWED, mine.marked[path], mine.names[path])
    for met in mets:
        meet(met.version, CommitEffect.MASKED, met.rows_masked, made)
        meet(met.version, CommitEffect.EVALUATED, met.rows_evaluated)
        meet(met.version, CommitEffect.LOST, met.rows_lost)
    return tuple(sorted(found.values(), key=lambda meeting: (meeting.version, meeting.effect)))


def segment_lifetimes(commits: Iterable[Commit]) -> list[SegmentLifetime]:
    """The segments that these commits created, changed or removed, in the order of creation."""
    found: dict[str, SegmentLifetime] = {}
    name_of: dict[str, str] = {}

    def life(name: str, born: int | None) -> SegmentLifetime:
        if name not in found:
            found[name] = SegmentLifetime(name, name.startswith("f-"), born)
        return found[name]

    for commit in commits:
        change = _Change.of(commit)
        for path, gone in change.gone.items():
            name = name_of.pop(path, None) or _name_of_gone(gone)
            it = life(name, None)
            it.files.discard(path)
            if not it.files:
                it.ended = commit.version
        ending = [n for n, it in found.items() if it.ended == commit.version]
        for path, add in change.added.items():
            name = change.names[path]
            it = life(name, commit.version)
            it.ended = None
            it.files.add(path)
            name_of[path] = name
            rows = num_records_of(add.stats)
            it.rows = None if rows is None else (it.rows or 0) + rows
            if _dead(add):
                it.deletes[commit.version] = it.deletes.get(commit.version, 0) + _dead(add)
        if change.gone and change.added:
            _descend(found, change, ending)
        for path, deleted in change.marked.items():
            name = change.names[path]
            it = life(name, None)
            it.files.add(path)
            name_of[path] = name
            it.deletes[commit.version] = it.deletes.get(commit.version, 0) + deleted
    return list(found.values())


def _name_of_gone(gone: RemoveFile) -> str:
    tags = gone.extra.get("tags")
    tag = tags.get(TAG_SEGMENT) if isinstance(tags, Mapping) else None
    known = {TAG_SEGMENT: tag} if isinstance(tag, str) else {}
    return segment_name(AddFile(gone.logged_path, {}, 0, 0, True, tags=known))


def _descend(found: Mapping[str, SegmentLifetime], change: _Change, ending: Sequence[str]) -> None:
    """Set the parents of new segments: by the tags of our files, otherwise all removed ones."""
    named = {change.names[path]: add for path, add in change.added.items()}
    for name, add in named.items():
        if change.ours:
            lineage = parse_lineage(add.tags.get(TAG_PARENTS, ""))
            parents = [old for old in ending if old in lineage]
        else:
            parents = list(ending[:_MOST_PARENTS])
        found[name].parents.update(dict.fromkeys(old for old in parents if old != name))
