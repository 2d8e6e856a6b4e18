"""Brings a version of the log up to a version of its base table: reads the commits in between.

A restore is resolved as the engines do, and checked by its files. Never guesses: a commit that is
gone, or whose meaning is unclear, is an error while there are unmerged records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from tandem.delta.actions import AddFile, Commit
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.snapshot import Snapshot
from tandem.errors import (
    BaseHistoryGap,
    BaseReplaced,
    CorruptLog,
    InvalidSpec,
    LogGap,
    VersionNotFound,
)
from tandem.mergelog.boundaries import (
    RESOLVE,
    BaseChange,
    BaseFiles,
    RestoreByTime,
    RestoredTo,
    advance,
    classify,
    is_restore,
    removed_paths,
    restored_by_number,
)
from tandem.mergelog.log_table import UNDO, MergeLog, settings_of, state_of
from tandem.mergelog.versions import BASE, MARK, ROLLBACK, Block, BlockLogState

# Which versions of a base table a restore by time may have restored.
#
# A restore leaves the files of its version. Spark logs the time as it was typed: without a zone,
# it may be in any. Statements that change properties, or begin and end a vacuum, leave the files
# as they are, so several versions may fit.


_ZONES_MS: Final = 14 * 3_600_000
"""How far a time zone is from UTC, at most."""

FileKey = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class Candidates:
    """`versions` ascend. Unless they are `complete`, a version that is gone may be another one."""

    versions: tuple[int, ...]
    complete: bool


def candidates(base: DeltaLog, commit: Commit, time: str) -> Candidates:
    """The versions with the files of a restore: of those at the times that its text can mean, or
    of all if none of them fits.

    Raises: CorruptLog, LogGap if the log is cleaned up meanwhile, StorageError.
    """
    span = _span(time)
    after = base.snapshot(commit.version)
    wanted, last = _keys(after), commit.version - 1
    first, _ = base.versions()
    begin = None if span is None else _version_at(base, span.earliest_ms)
    complete = not first or begin is not None
    if span is not None:
        in_time = after.timestamp_ms <= span.latest_ms
        end = last if in_time else _version_at(base, span.latest_ms)
        if end is not None:
            low = first if begin is None else min(begin, last)
            found = _with_files(base, wanted, low, min(end, last))
            if found:
                return Candidates(found, complete)
    return Candidates(_with_files(base, wanted, first, last), complete)


def _version_at(base: DeltaLog, time_ms: int) -> int | None:
    try:
        return base.snapshot(timestamp_ms=time_ms).version
    except VersionNotFound:
        return None


def _with_files(
    base: DeltaLog, wanted: frozenset[FileKey], first: int, last: int
) -> tuple[int, ...]:
    differing = set(_keys(base.snapshot(first)) ^ wanted)
    found = [] if differing else [first]
    for commit in base.commits(first + 1, last):
        added = {add.key for add in commit.adds}
        touched = added | {remove.key for remove in commit.removes}
        differing -= touched
        differing |= {key for key in touched if (key in added) != (key in wanted)}
        if not differing:
            found.append(commit.version)
    return tuple(found)


def _keys(snapshot: Snapshot) -> frozenset[FileKey]:
    return frozenset(add.key for add in snapshot.adds())


@dataclass(frozen=True, slots=True)
class _Span:
    """What a time can mean, in Unix milliseconds; both ends are included."""

    earliest_ms: int
    latest_ms: int


def _span(time: str) -> _Span | None:
    """Of milliseconds since 1970, or a text; None if it is neither."""
    if time.lstrip("-").isdecimal():
        return _Span(int(time), int(time))
    try:
        found = datetime.fromisoformat(time)
    except ValueError:
        return None
    zones_ms = 0 if found.tzinfo else _ZONES_MS
    aware = found if found.tzinfo else found.replace(tzinfo=UTC)
    milliseconds = int(aware.timestamp() * 1000)
    return _Span(milliseconds - zones_ms, milliseconds + zones_ms)


# What the retained versions of a base table need of its log, beyond the log's newest version.
#
# A version of the log that is brought up to one of the base table has the same blocks as before,
# or fewer; only a restore brings older ones back. So what was live at the beginning of the
# retention, and after each restore since, is all that a view within the retention can read.


@dataclass(frozen=True, slots=True)
class Retained:
    """`instant` is the oldest version of the log that is read, `blocks` are paths."""

    instant: int
    blocks: frozenset[str]


def retained(log: MergeLog, newest: Snapshot, since_ms: int) -> Retained:
    """What the views of the base versions need that were current at a time (Unix milliseconds) or
    later.

    Args:
        newest: the newest version of the log.
    Raises: LogGap if the base table's log is cleaned up meanwhile, CorruptLog, StorageError.
    """
    history = BaseHistory(log, newest)
    instant, blocks = newest.version, frozenset[str]()
    for version in _versions(log, since_ms):
        try:
            state = history.before(version)
        except (BaseHistoryGap, BaseReplaced):
            continue  # its view is refused by name: nothing makes it readable
        blocks |= state.live.keys()
    return Retained(min(instant, history.oldest_instant), blocks)


def _versions(log: MergeLog, since_ms: int) -> list[int]:
    """The base version that was current then, and the restores since."""
    listing = log.base.commit_log.tail(0)
    times = {listing.earliest: 0}
    times |= {v: file.modified_ms for v, file in listing.commits.items() if v >= listing.earliest}
    first = current_at(times, since_ms)
    commits = log.base.commits(first + 1, listing.latest)
    return [first, *(commit.version for commit in commits if is_restore(commit))]


def current_at(times: Mapping[int, int], time_ms: int) -> int:
    """The version that was current at a time, or an earlier one; the first one if the time is
    before all. Pure.

    Args:
        times: when each version was committed (Unix milliseconds), by any clock: they need not
            ascend.
    """
    later = [version for version, committed_ms in times.items() if committed_ms > time_ms]
    return max(min(times), min(later, default=max(times) + 1) - 1)


class BaseHistory:
    """Reads the history of a base table for one version of its log."""

    def __init__(self, log: MergeLog, snapshot: Snapshot) -> None:
        self._log = log
        self._newest = snapshot
        self._ordered = settings_of(snapshot).ordered
        self._restored: dict[str, AddFile] = {}
        # Restores may lead to restores: what was found for a version is not searched twice.
        self._before: dict[int, tuple[int, BlockLogState]] = {}
        self._read: dict[int, Commit] = {}
        self._changes: dict[int, BaseChange] = {}
        self._blocks: dict[str, Block] = {}
        # Restores whose meaning follows from what this version of the log says.
        self._by_state: set[int] = set()
        self._version_of_log = lru_cache(maxsize=32)(log.snapshot)

    def following(self, snapshot: Snapshot) -> BaseHistory:
        """The history for a later version of the same log. What was read of the base table is kept,
        so that each round of a commit loop reads only the commits since the last one."""
        found = BaseHistory(self._log, snapshot)
        if snapshot.metadata.id != self._newest.metadata.id:
            return found  # another log is in its place
        base = base_of(snapshot)
        found._read = {at: commit for at, commit in self._read.items() if at > base}
        # A record that a later version adds may tell versions apart that showed the same.
        found._changes = {
            at: change
            for at, change in self._changes.items()
            if at > base and at not in self._by_state
        }
        # What was found before the newest version stays: the next version has looked further.
        found._before = {
            at: known for at, known in self._before.items() if known[0] < self._newest.version
        }
        found._restored = dict(self._restored)
        found._blocks = self._blocks
        return found

    def at(self, version: int) -> BlockLogState:
        """The state of the log as of a base version that is not before its own.

        Raises: BaseReplaced, BaseHistoryGap.
        """
        return self._advanced(self._newest, version)

    def restored(self, path: str) -> AddFile:
        """The `add` of a block that only an earlier version of the log has, and that a state of
        `at` has again."""
        return self._restored[path]

    @property
    def oldest_instant(self) -> int:
        """The oldest version of the log that was read; 0 if a state before the log was made was
        asked for, since only its first version shows that."""
        return max(0, min((at for at, _ in self._before.values()), default=self._newest.version))

    def before(self, version: int) -> BlockLogState:
        """`LogHistory`: the newest state of the log that looked at no later base version, as
        of exactly that version.

        Raises: BaseHistoryGap if the log no longer has it.
        """
        return self.instant_before(version)[1]

    def instant_before(self, version: int) -> tuple[int, BlockLogState]:
        """As `before`, with the version of the log: -1, with an empty state, if the log was made
        after that version."""
        if version not in self._before:
            self._before[version] = self._instant_before(version)
        return self._before[version]

    def _instant_before(self, version: int) -> tuple[int, BlockLogState]:
        snapshot = self._newest_before(version)
        if snapshot is None:
            return -1, BlockLogState(self._base_at(version).metadata.id, version)
        for add in snapshot.adds():
            self._restored[add.logged_path] = add
        return snapshot.version, self._advanced(snapshot, version)

    def _advanced(self, snapshot: Snapshot, version: int) -> BlockLogState:
        state = state_of(snapshot, self._blocks)
        self._blocks = dict(state.live)
        if version < state.base:
            raise BaseReplaced(
                "the base table is older than its log",
                resource=self._log.base.store.location,
                field="version",
                found=version,
                expected=f"at least {state.base}, which the log has recorded",
                remedy="The base table was replaced: restore it, or remove its log",
            )
        commits = self._commits(snapshot, state, version)
        if commits is None:
            return self._begun_at(version, state)
        begin = 0
        for at, commit in enumerate(commits):
            if at < begin:
                continue
            try:
                change = self._known_change(commit, commits[:at], snapshot.metadata.id)
                state = advance(state, [change], self.before, ordered=self._ordered)
            except (BaseReplaced, BaseHistoryGap) as error:
                # A later restore that names its version decides without it.
                later = range(at + 1, len(commits))
                begin = next((n for n in later if restored_by_number(commits[n]) >= 0), 0)
                if not begin:
                    if isinstance(error, BaseReplaced) and not was_appended(snapshot):
                        return self._begun_at(version, state)
                    raise
                state = replace(state, base=commits[begin].version - 1)
        return state

    def _begun_at(self, version: int, state: BlockLogState) -> BlockLogState:
        """As if the log began at this version: it has never had a record, so nothing depends on
        what became of the base table before, which may have become another one."""
        return BlockLogState(self._base_at(version).metadata.id, version, state.mark)

    def _known_change(self, commit: Commit, earlier: Sequence[Commit], log_id: str) -> BaseChange:
        if commit.version not in self._changes:
            self._changes[commit.version] = self._change(commit, earlier, log_id)
        return self._changes[commit.version]

    def _change(self, commit: Commit, earlier: Sequence[Commit], log_id: str) -> BaseChange:
        found = classify(commit, lambda wanted: self._files_at(wanted, earlier), log_id)
        if isinstance(found, RestoreByTime):
            return RestoredTo(self._version_of(commit, found.time))
        return found

    def _commits(
        self, snapshot: Snapshot, state: BlockLogState, version: int
    ) -> list[Commit] | None:
        """None if some are gone, but the log has never had a record."""
        wanted = range(state.base + 1, version + 1)
        try:
            first = next((number for number in wanted if number not in self._read), None)
            if first is not None:
                commits = self._log.base.commits(first, version)
                self._read |= {commit.version: commit for commit in commits}
            return [self._read[number] for number in wanted]
        except LogGap as gap:
            # Merged deletes of an ordered log are at stake, too: they stay in force. Without a live
            # block, a restore among the commits may have brought one back.
            if not was_appended(snapshot):
                return None
            found = f"commits from version {gap.first_available} on"
            raise self._gap(found, f"commits from version {state.base + 1} on") from gap

    def _base_at(self, version: int) -> Snapshot:
        try:
            return self._log.base.snapshot(version)
        except (VersionNotFound, CorruptLog) as error:
            raise self._gap(str(error), f"version {version}, which was restored") from error

    def _gap(self, found: str, expected: str) -> BaseHistoryGap:
        return BaseHistoryGap(
            "commits that decide which records are valid are no longer in the base table's log",
            resource=self._log.base.store.location,
            field="version",
            found=found,
            expected=expected,
            remedy=RESOLVE,
        )

    def _files_at(self, version: int, earlier: Sequence[Commit]) -> BaseFiles:
        try:
            snapshot = self._log.base.snapshot(version)
        except (VersionNotFound, CorruptLog) as error:
            raise self._gap(str(error), f"version {version}, which a commit replaced") from error
        return BaseFiles(
            live=_paths(snapshot),
            removed=removed_paths(earlier),
            partitioned=bool(snapshot.partition_columns),
        )

    def _version_of(self, commit: Commit, time: str) -> int:
        """A version that a restore by time restored: the only one that it can be, or one of
        several that show the same."""
        found = candidates(self._log.base, commit, time)
        if len(found.versions) > 1:
            self._by_state.add(commit.version)
        if found.complete and found.versions and self._show_the_same(found.versions):
            return found.versions[-1]
        versions = ", ".join(map(str, found.versions[:10])) or "there is none"
        gone = "" if found.complete else ", or one that is no longer in the log"
        raise BaseReplaced(
            f"it is unclear which version the restore in version {commit.version} restored",
            resource=self._log.base.store.location,
            field="operationParameters.timestamp",
            found=time,
            expected=f"a time that means one of the versions with these files: {versions}{gone}",
            remedy=f"Restore the version that was meant again, by its number. Otherwise: {RESOLVE}",
        )

    def _show_the_same(self, versions: Sequence[int]) -> bool:
        """Whether the log has the same state for each base version: then it does not matter
        which of them was restored."""
        if len(versions) == 1:
            return True

        def state_at(version: int) -> tuple[object, ...]:
            state = self.before(version)
            return state.base_id, state.mark, state.live, state.columns

        last = state_at(versions[-1])
        return all(state_at(version) == last for version in versions[:-1])

    def _newest_before(self, version: int) -> Snapshot | None:
        """The newest version of the log that has looked at no base version after this one, None if
        its first one has: base versions never descend, so it is found by bisection."""
        first, _ = self._log.log.versions()
        try:
            return self._bisected(first, version)
        except (VersionNotFound, CorruptLog):
            now, _ = self._log.log.versions()
            if now == first:
                raise
            return self._bisected(now, version)  # cleaned meanwhile

    def _bisected(self, low: int, version: int) -> Snapshot | None:
        high = self._newest.version
        if base_of(self._version_of_log(low)) > version:
            if low == 0:
                return None
            raise BaseHistoryGap(
                "the log no longer has the state that a restore of its base table needs",
                resource=self._log.store.location,
                field="version",
                found=f"versions from {low} on",
                expected=f"one that recorded base version {version} or less",
                remedy=RESOLVE,
            )
        while low < high:
            middle = (low + high + 1) // 2
            if base_of(self._version_of_log(middle)) <= version:
                low = middle
            else:
                high = middle - 1
        return self._version_of_log(low)


def require_same_table(base: Snapshot, state: BlockLogState) -> None:
    """Check that the base table is the one that the log belongs to, and that the keys and the
    ordering column are those of the live records: a column of the same name may be another one.

    Raises: BaseReplaced, InvalidSpec.
    """
    if base.version == state.base and base.metadata.id != state.base_id:
        raise BaseReplaced(
            "the base table was re-created at the same location",
            resource=base.location,
            field="metaData.id",
            found=base.metadata.id,
            expected=state.base_id,
            remedy="Restore the table, or remove its log in `_tandem/log`",
        )
    if not state.live:
        return
    for name, physical in state.columns:
        field = base.schema.get(name)
        if field is None or field.physical_name != physical:
            found = "no such column" if field is None else f"physical name {field.physical_name}"
            names = [each.name for each in base.schema if each.physical_name == physical]
            raise InvalidSpec(
                "a key or the ordering column is another column than that of the log's records",
                resource=base.location,
                field=name,
                found=f"{found}; {physical} " + (f"is {names[0]}" if names else "was dropped"),
                expected=f"physical name {physical}",
                remedy=UNDO,
            )


def was_appended(snapshot: Snapshot) -> bool:
    """Whether a version of the log, or an earlier one, may have blocks: each append leaves a
    `txn`."""
    return any(
        app not in (BASE, MARK) and not app.startswith(ROLLBACK) for app in snapshot.txns
    ) or bool(snapshot.num_files)


def base_of(snapshot: Snapshot) -> int:
    """The base version that a version of the log has looked at. Raises: CorruptLog."""
    found = snapshot.txns.get(BASE)
    if found is None:
        raise CorruptLog(
            "a version of the log of blocks cannot be read",
            resource=snapshot.location,
            field=f"version {snapshot.version}",
            found="none",
            expected=f"a txn {BASE}",
            remedy="Another writer has changed the log: restore its files from a backup",
        )
    return found.version


def _paths(snapshot: Snapshot) -> frozenset[str]:
    return frozenset(snapshot.files["path"].to_pylist())
