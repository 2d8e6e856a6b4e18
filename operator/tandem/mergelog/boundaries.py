"""What a commit of the base table means for the log (table below), and the fold over commits.

Pure. Statements of others see the base table only, so the unmerged records come after them, except
for *boundaries*: commits that replace the table as a whole. A boundary is recognized by its
operation, and checked by its files: what contradicts itself is refused, never guessed.

From one state of the log to the actions that record the next. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from tandem.delta.actions import Action, AddFile, Commit, Metadata, Txn
from tandem.delta.log.snapshot import Snapshot, remove_of
from tandem.errors import BaseReplaced
from tandem.mergelog.log_table import (
    log_metadata_for,
    log_protocol,
    require_columns,
    settings_of,
)
from tandem.mergelog.versions import MERGED, BlockLogState, LogHistory, txns_of


class Boundary(StrEnum):
    """What a boundary does to unmerged records."""

    VOIDS = "the records before it are void"
    RESTORES = "the view is that of another version"


@dataclass(frozen=True, slots=True)
class BoundaryRule:
    """A commit is a boundary if its operation and parameters are these.

    Attributes:
        modes: values of the parameter `mode`, or `outputMode` of a stream; any, if empty.
        unconditional: whether a predicate makes it an ordinary statement.
    """

    operation: str
    boundary: Boundary
    modes: tuple[str, ...] = ()
    unconditional: bool = False


BOUNDARIES: tuple[BoundaryRule, ...] = (
    # operation                                  boundary            mode            no predicate
    BoundaryRule("WRITE", Boundary.VOIDS, ("Overwrite",), True),
    BoundaryRule("STREAMING UPDATE", Boundary.VOIDS, ("Complete",)),
    BoundaryRule("DELETE", Boundary.VOIDS, (), True),
    BoundaryRule("TRUNCATE", Boundary.VOIDS),
    BoundaryRule("REPLACE TABLE", Boundary.VOIDS),
    BoundaryRule("REPLACE TABLE AS SELECT", Boundary.VOIDS),
    BoundaryRule("CREATE OR REPLACE TABLE", Boundary.VOIDS),
    BoundaryRule("CREATE OR REPLACE TABLE AS SELECT", Boundary.VOIDS),
    BoundaryRule("CLONE", Boundary.VOIDS),
    BoundaryRule("RESTORE", Boundary.RESTORES),
)

ORDINARY: frozenset[str] = frozenset(
    {
        "WRITE", "STREAMING UPDATE", "UPDATE", "DELETE", "MERGE", "OPTIMIZE", "REORG", "COPY INTO",
        "ABANDON", "VACUUM START", "VACUUM END", "FSCK", "CONVERT", "CREATE TABLE",
        "CREATE TABLE AS SELECT", "ADD COLUMN", "ADD COLUMNS", "CHANGE COLUMN", "CHANGE COLUMNS",
        "RENAME COLUMN", "DROP COLUMNS", "REPLACE COLUMNS", "SET TBLPROPERTIES",
        "UNSET TBLPROPERTIES", "ADD CONSTRAINT", "DROP CONSTRAINT", "ADD FEATURE", "DROP FEATURE",
        "UPGRADE PROTOCOL", "UPDATE COLUMN METADATA", "UPDATE TABLE METADATA",
        "UPDATE FIELD METADATA", "UPDATE SCHEMA", "CLUSTER BY", "DOMAIN METADATA CLEANUP",
        "COMPUTE STATS", "ROW TRACKING BACKFILL", "EMPTY COMMIT", "MANUAL UPDATE",
    }
)  # fmt: skip
"""Operations that are known to leave unmerged records alone, unless `BOUNDARIES` has them. One
that is not listed is refused if it removes every file, or adds a removed file again: it could be
an overwrite or a restore under another name."""

RESOLVE = (
    "Keep the unmerged records with `tandem log resolve --keep`, or remove them with "
    "`tandem log resolve --discard`"
)

_EVERY_ROW = frozenset({"", "[]", "true", '["true"]'})
"""Predicates that hold for each row, as engines log them."""


@dataclass(frozen=True, slots=True)
class BaseFiles:
    """The base table at a version: logged paths of its live files, logged paths that were removed
    before, as far as they are known, and whether it is partitioned."""

    live: frozenset[str]
    removed: frozenset[str] = frozenset()
    partitioned: bool = False


@dataclass(frozen=True, slots=True)
class Unaffected:
    """The records stay as they are. `table_id` is the id in the commit's metadata, if it has
    some."""

    table_id: str | None = None


@dataclass(frozen=True, slots=True)
class MergedUpTo:
    """A LogMerge: the records up to this instant are in the base table."""

    mark: int


@dataclass(frozen=True, slots=True)
class Voided:
    """The records before it are void. `table_id` as in `Unaffected`; it may be another one."""

    table_id: str | None = None


@dataclass(frozen=True, slots=True)
class RestoredTo:
    """The table is that of base version `version`."""

    version: int


@dataclass(frozen=True, slots=True)
class RestoreByTime:
    """As `RestoredTo`, but the commit gives a time. `time` is its text; which version it means is
    for the caller to find."""

    time: str


BaseChange = Unaffected | MergedUpTo | Voided | RestoredTo


def classify(
    commit: Commit, files_at: Callable[[int], BaseFiles], log_id: str
) -> BaseChange | RestoreByTime:
    """What a commit of the base table means for the log `log_id`.

    Args:
        files_at: the base table at a version; called only if the operation needs a check.
    Raises: BaseReplaced, if the operation is unknown, or not what its name says.
    """
    mark = mark_in(commit, log_id)
    if mark is not None:
        return MergedUpTo(mark)
    operation = str(commit.info.body.get("operation", "")) if commit.info else ""
    parameters = _parameters(commit)
    rule = next((rule for rule in BOUNDARIES if _is(rule, operation, parameters)), None)
    if rule is None:
        if operation not in ORDINARY:
            _require_ordinary(commit, files_at(commit.version - 1))
        return Unaffected(_table_id(commit))
    if rule.boundary is Boundary.RESTORES:
        return _restore(commit, parameters)
    # At the version that it read: Delta may commit it after blind appends, whose rows it keeps.
    files = files_at(_read_version(commit))
    if _flag(parameters, "isDynamicPartitionOverwrite") and files.partitioned:
        return Unaffected(_table_id(commit))
    left = _left(commit, files)
    if left:
        raise _contradiction(
            commit, f"{len(left)} of the files that it read are still live", "none of them"
        )
    return Voided(_table_id(commit))


def is_restore(commit: Commit) -> bool:
    """Whether it is, or calls itself, a restore."""
    operation = commit.info.operation if commit.info else ""
    return any(
        rule.operation == operation and rule.boundary is Boundary.RESTORES for rule in BOUNDARIES
    )


def restored_by_number(commit: Commit) -> int:
    """The version that a restore names, -1 for other commits. It decides without the commits
    before it."""
    return _number(commit, _parameters(commit)) if is_restore(commit) else -1


def advance(
    state: BlockLogState, changes: Sequence[BaseChange], history: LogHistory, *, ordered: bool
) -> BlockLogState:
    """The state after the changes of the base versions that follow `state.base`, one each.

    Args:
        history: the log's states as of earlier base versions, which restores need.
        ordered: whether the log has an ordering column; its deletes stay in force after a merge.
    Raises: BaseReplaced, if the metadata of another table appears without a boundary.
    """
    for change in changes:
        base = state.base + 1
        match change:
            case Unaffected(table_id):
                if table_id not in (None, state.base_id):
                    raise _another_table(base, state.base_id, table_id)
                state = replace(state, base=base)
            case MergedUpTo(mark):
                live = {
                    path: block
                    for path, block in state.live.items()
                    if block.last > mark or (ordered and block.deletes)
                }
                state = replace(state, base=base, mark=mark, live=live)
            case Voided(table_id):
                state = BlockLogState(table_id or state.base_id, base, state.mark)
            case RestoredTo(version):
                state = replace(history(version), base=base)
    return state


def _another_table(version: int, known: str, found: str | None) -> BaseReplaced:
    return BaseReplaced(
        f"version {version} of the base table has the metadata of another table",
        field="metaData.id",
        found=found,
        expected=known,
        remedy=RESOLVE,
    )


def mark_in(commit: Commit, log_id: str) -> int | None:
    """The mark that a commit of the base table records: None unless it merges this log."""
    for action in commit.actions:
        if isinstance(action, Txn) and action.app_id == MERGED + log_id:
            return action.version
    return None


def _parameters(commit: Commit) -> Mapping[str, Any]:
    found = commit.info.body.get("operationParameters") if commit.info else None
    return found if isinstance(found, Mapping) else {}


def _is(rule: BoundaryRule, operation: str, parameters: Mapping[str, Any]) -> bool:
    if operation != rule.operation:
        return False
    mode = parameters.get("mode", parameters.get("outputMode"))
    if rule.modes and mode not in rule.modes:
        return False
    return not rule.unconditional or str(parameters.get("predicate") or "") in _EVERY_ROW


def _flag(parameters: Mapping[str, Any], name: str) -> bool:
    return str(parameters.get(name, "")).lower() == "true"


def _table_id(commit: Commit) -> str | None:
    found = [action.id for action in commit.actions if isinstance(action, Metadata)]
    return found[-1] if found else None


def _read_version(commit: Commit) -> int:
    found = commit.info.body.get("readVersion") if commit.info else None
    last = commit.version - 1
    return found if isinstance(found, int) and 0 <= found <= last else last


def _left(commit: Commit, files: BaseFiles) -> frozenset[str]:
    """The files that are live after the commit."""
    gone = {remove.logged_path for remove in commit.removes}
    return files.live - (gone - {add.logged_path for add in commit.adds})


def _number(commit: Commit, parameters: Mapping[str, Any]) -> int:
    text = str(parameters.get("version"))
    return int(text) if text.isdecimal() and int(text) < commit.version else -1


def _restore(commit: Commit, parameters: Mapping[str, Any]) -> RestoredTo | RestoreByTime:
    version, time = (
        parameters.get("version"),
        parameters.get("timestamp", parameters.get("datetime")),
    )
    if version is not None:
        number = _number(commit, parameters)
        if number >= 0:
            return RestoredTo(number)
    elif time is not None:
        return RestoreByTime(str(time))
    raise _contradiction(commit, f"version {version}, time {time}", "an earlier version, or a time")


def _require_ordinary(commit: Commit, files: BaseFiles) -> None:
    if files.live and not _left(commit, files):
        raise _contradiction(commit, "it removes every file", "an operation that Tandem knows")
    again = files.removed.intersection(add.logged_path for add in commit.adds)
    if again:
        raise _contradiction(
            commit, f"it adds {min(again)} again", "an operation that Tandem knows"
        )


def _contradiction(commit: Commit, found: str, expected: str) -> BaseReplaced:
    operation = commit.info.operation if commit.info else ""
    return BaseReplaced(
        f"it is unclear whether the unmerged records are still valid after "
        f"{operation or 'an unknown operation'} in version {commit.version}",
        field=f"version {commit.version}",
        found=found,
        expected=expected,
        remedy=RESOLVE,
    )


def removed_paths(commits: Iterable[Commit]) -> frozenset[str]:
    """Logged paths that the commits remove."""
    return frozenset(remove.logged_path for commit in commits for remove in commit.removes)


def transition(
    snapshot: Snapshot,
    state: BlockLogState,
    added: Callable[[str], AddFile],
    *,
    base: Snapshot,
    now_ms: int,
) -> list[Action]:
    """The actions, without a `commitInfo`, that turn a version of the log into `state`.

    Args:
        added: the `add` of a block that is live in `state`, but not in `snapshot`.
        base: the base table as of `state.base`.
        now_ms: Unix milliseconds.
    Raises: InvalidSpec, if the base table lacks a key or the ordering column: with its schema, the
        log could not be read any more.
    """
    require_columns(base, settings_of(snapshot))
    actions: list[Action] = []
    protocol = log_protocol(base, snapshot.protocol)
    metadata = log_metadata_for(snapshot, base)
    if protocol != snapshot.protocol:
        actions.append(protocol)
    if metadata != snapshot.metadata:
        actions.append(metadata)
    actions += [
        txn
        for txn in txns_of(state)
        if txn.app_id not in snapshot.txns or snapshot.txns[txn.app_id].version != txn.version
    ]
    live = set(snapshot.files["path"].to_pylist())
    gone = snapshot.files_by_path(live - state.live.keys())
    actions += [remove_of(add, deletion_ms=now_ms, data_change=False) for add in gone.values()]
    actions += [
        replace(added(path), data_change=True, modified_ms=now_ms)
        for path in state.live
        if path not in live
    ]
    return actions
