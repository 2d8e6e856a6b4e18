"""Versions as change sets, and the working set that follows from them.

The model at the end of the Druid analysis: a version adds files, removes files, and masks parts of
files; all of it becomes visible at once. The working set of a version is the replay of all change
sets up to it. No insert conflicts with another insert, masks of one file combine, and two change
sets without a common file give the same working set in either order.

Delta's log is such a log of versions: `change_of` reads one of its commits.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

from tandem.delta.actions import Commit
from tandem.delta.log import files as files_
from tandem.intervals import ALWAYS, IntervalSet
from tandem.timeline.chunks import TimeColumn
from tandem.timeline.segments import segments
from tandem.timeline.working_set.masks import TAG_MASKED, parse_masked

_NOTHING = IntervalSet()
_ALWAYS = IntervalSet([ALWAYS])


@dataclass(frozen=True, slots=True)
class Mask:
    """What a version hides of a file: `intervals` whole, and `rows` rows in all (0 if the number is
    not known). Rows may be hidden outside of the intervals, too."""

    intervals: IntervalSet = _NOTHING
    rows: int = 0


@dataclass(frozen=True, slots=True)
class LiveFile:
    """A file of a working set. `covers`: the moments that its rows may have; `ALWAYS` if unknown.
    `masked`: what is hidden of it by now. `rows`: physical rows, None if unknown."""

    covers: IntervalSet = _ALWAYS
    masked: Mask = Mask()
    rows: int | None = None
    segment: str = ""

    @property
    def visible(self) -> IntervalSet:
        """The intervals in which it may have live rows."""
        return _NOTHING if self.hidden else self.covers - self.masked.intervals

    @property
    def hidden(self) -> bool:
        """Whether masks hide all of it."""
        by_rows = self.rows is not None and 0 < self.rows <= self.masked.rows
        return by_rows or (bool(self.masked.intervals) and not self.covers - self.masked.intervals)

    def with_mask(self, mask: Mask) -> LiveFile:
        both = Mask(self.masked.intervals | mask.intervals, self.masked.rows + mask.rows)
        return replace(self, masked=both)


WorkingSet = Mapping[str, LiveFile]
"""Files by their name (of a Delta table: the logged path)."""


@dataclass(frozen=True, slots=True)
class ChangeSet:
    """One version: files that it adds, removes and masks. A file is in one of the three only.

    A file in `adds` that is live already is replaced: a restore that shows rows again adds the
    file with the mask that it had.

    Raises: ValueError for a file in two of them.
    """

    version: int
    adds: Mapping[str, LiveFile] = field(default_factory=dict)
    removes: frozenset[str] = frozenset()
    masks: Mapping[str, Mask] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.files) < len(self.adds) + len(self.removes) + len(self.masks):
            raise ValueError(f"version {self.version} changes a file in two ways")

    @property
    def files(self) -> frozenset[str]:
        """All files that it concerns."""
        return self.removes.union(self.adds, self.masks)


def apply(before: WorkingSet, change: ChangeSet) -> dict[str, LiveFile]:
    """The working set after a version. A file of which masks hide everything leaves it (D53); the
    removal or mask of a file that is not in it changes nothing."""
    after = dict(before)
    _apply(after, change)
    return after


def replay(
    changes: Iterable[ChangeSet], start: WorkingSet | None = None
) -> Iterator[tuple[ChangeSet, dict[str, LiveFile]]]:
    """Each version with its working set.

    Args:
        changes: consecutive versions, ascending.
        start: the working set before the first of them; by default empty.
    """
    after: Mapping[str, LiveFile] = start or {}
    for change in changes:
        after = apply(after, change)
        yield change, after


def commutes(a: ChangeSet, b: ChangeSet) -> bool:
    """Whether two versions have no file in common: in either order, the working set is the same."""
    return a.files.isdisjoint(b.files)


def depends(b: ChangeSet, a: ChangeSet) -> bool:
    """Whether `b` takes, masks or replaces a file that `a` added."""
    return not b.files.isdisjoint(a.adds)


def garbage(changes: Iterable[ChangeSet], retained: Collection[int]) -> frozenset[str]:
    """The files that these versions added, and that no retained version shows.

    Args:
        changes: consecutive versions, ascending.
        retained: versions that must stay readable. Those before the first of `changes` show none
            of its files; those after the last show what the last does.
    """
    kept = sorted(retained)
    live: dict[str, LiveFile] = {}
    born: dict[str, int] = {}
    added: set[str] = set()
    needed: set[str] = set()

    def end(name: str, version: int) -> None:
        first = born.pop(name, version)
        at = bisect_left(kept, first)
        if at < len(kept) and kept[at] < version:
            needed.add(name)

    for change in changes:
        added.update(change.adds)
        _apply(live, change)
        for name in change.files:
            if name in live:
                born.setdefault(name, change.version)
            else:
                end(name, change.version)
    for name in list(born):
        end(name, 1 << 63)
    return frozenset(added - needed)


def live_files(files: pa.Table, time: TimeColumn | None = None) -> dict[str, LiveFile]:
    """The working set of a version, without files of which nothing is visible.

    Args:
        files: as `Snapshot.files`.
        time: the table's time column; without one, each file may have rows of any time.
    """
    return {path: file for path, file in read_files(files, time).items() if not file.hidden}


def read_files(files: pa.Table, time: TimeColumn | None = None) -> dict[str, LiveFile]:
    """As `live_files`, with files of which nothing is visible; in the order of segments. Hints
    about times count only where the times of the file are known."""
    found = segments(files, time).files
    columns = found.columns
    sets = [_ALWAYS if each is None else IntervalSet([each]) for each in columns.intervals]
    hints = columns.tags(TAG_MASKED).to_pylist()
    names = columns.names.take(columns.segments).to_pylist()
    return {
        path: LiveFile(
            covers=sets[code],
            masked=Mask(
                parse_masked(hint, deleted) if hint and sets[code] != _ALWAYS else _NOTHING, deleted
            ),
            rows=rows,
            segment=name,
        )
        for path, code, hint, deleted, rows, name in zip(
            columns.paths,
            columns.codes,
            hints,
            columns.deletions,
            columns.rows,
            names,
            strict=True,
        )
    }


def change_of(commit: Commit, time: TimeColumn | None = None) -> ChangeSet:
    """A commit of a Delta table as a change set of its files, by logged path.

    A file that is removed and added again with more deleted rows is masked; with other ones (a
    restore), it is added.
    """
    adds = read_files(files_.from_adds(commit.adds), time)
    removes = {gone.logged_path: gone.deletion_vector for gone in commit.removes}
    masks: dict[str, Mask] = {}
    for path in adds.keys() & removes.keys():
        vector = removes.pop(path)
        now = adds[path].masked
        grown = now.rows - (vector.cardinality if vector is not None else 0)
        if grown > 0:
            masks[path] = Mask(now.intervals, grown)
            del adds[path]
    return ChangeSet(commit.version, adds, frozenset(removes), masks)


def _apply(live: dict[str, LiveFile], change: ChangeSet) -> None:
    for name in change.removes:
        live.pop(name, None)
    live.update(change.adds)
    for name, mask in change.masks.items():
        if name in live:
            live[name] = live[name].with_mask(mask)
    for name in change.adds.keys() | change.masks.keys():
        if name in live and live[name].hidden:
            del live[name]
