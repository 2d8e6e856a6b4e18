"""Classifies commits: maps a Delta commit to a line of `rules`.

A blind append is recognized by its operation, never by its actions. A mapped rewrite is a commit
of Tandem with a valid row map for everything that it added. Any other commit counts as a change:
that costs an evaluation, but never a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

from pyroaring import BitMap64

from tandem.delta.actions import AddFile, Commit, DeletionVector, Metadata, Protocol, RemoveFile
from tandem.reconcile.model import Author, ChangeKind, CommitSummary, NewRows, RowMapLike, RowMaps
from tandem.reconcile.rules import (
    BLIND_APPENDS,
    NEUTRAL_WITHOUT_FILES,
    NEW_ROWS,
    AppendRule,
    Engine,
)
from tandem.rowmap.positions import span
from tandem.spec.common import OPERATIONS, Mode
from tandem.text import clean

ReadVector = Callable[[DeletionVector], BitMap64 | None]
"""The rows that a deletion vector deletes; None if its file is gone."""


def classify(
    commit: Commit, row_maps: RowMaps, read_vector: ReadVector | None = None
) -> CommitSummary:
    """The commit as reconciliation sees it.

    Args:
        row_maps: output path → row map, for outputs whose published map is readable and valid; a
            lost one is missing, and its rewrite is a change (C6b).
        read_vector: reads a deletion vector of a rewrite that cut its inputs. Without it, such a
            rewrite is a change.
    """
    kind = _kind(commit, row_maps, read_vector)
    return CommitSummary(
        version=commit.version,
        kind=kind,
        files=frozenset(
            [add.logged_path for add in commit.adds] + [gone.logged_path for gone in commit.removes]
        ),
        who=describe(commit),
        table_changed=tuple(
            name
            for name, type_ in (("metadata", Metadata), ("protocol", Protocol))
            if any(isinstance(action, type_) for action in commit.actions)
        ),
        author=author_of(commit),
        new_rows=new_rows(commit, kind),
        added=frozenset(add.logged_path for add in commit.adds),
    )


def gap(last: int, files: frozenset[str]) -> CommitSummary:
    """Versions up to `last` are no longer in the log; `files` differ between the versions
    around them (path or deletion vector)."""
    return CommitSummary(
        version=last,
        kind=ChangeKind.GAP,
        files=files,
        who=f"commits up to version {last} that are no longer in the log",
        added=files,
    )


def describe(commit: Commit) -> str:
    """Operation, engine, version and time, for messages."""
    author = author_of(commit)
    operation = author.operation or "an unknown operation"
    who = author.by or author.engine or "an unknown engine"
    when = datetime.fromtimestamp(commit.timestamp_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"{operation} by {who} (version {commit.version}, {when})"


def author_of(commit: Commit) -> Author:
    """The commit's author. Names are free text in the log, and are cleaned for messages."""
    info = commit.info
    if info is None:
        return Author(commit.version, time_ms=commit.timestamp_ms)
    resource = _ours(info.body).get("resource")
    # Outside a cluster the namespace is always `default`.
    by = resource.removeprefix("default/") if isinstance(resource, str) else ""
    return Author(
        commit.version,
        operation=clean(info.operation),
        engine=clean(info.engine),
        time_ms=commit.timestamp_ms,
        by=clean(by),
    )


def _kind(commit: Commit, row_maps: RowMaps, read_vector: ReadVector | None) -> ChangeKind:
    body = commit.info.body if commit.info else {}
    operation = str(body.get("operation", ""))
    if not commit.adds and not commit.removes:
        return ChangeKind.NEUTRAL if operation in NEUTRAL_WITHOUT_FILES else ChangeKind.CHANGE
    if not commit.removes and any(_is(rule, body) for rule in BLIND_APPENDS):
        return ChangeKind.BLIND_APPEND
    if _is_mapped_rewrite(commit, body, row_maps, read_vector):
        return ChangeKind.MAPPED_REWRITE
    return ChangeKind.CHANGE


def new_rows(commit: Commit, kind: ChangeKind) -> NewRows:
    """Where the rows of the commit's new files come from."""
    if kind is ChangeKind.BLIND_APPEND:
        return NewRows.ARRIVED
    if kind is ChangeKind.MAPPED_REWRITE:
        return NewRows.MAPPED
    operation = commit.info.operation if commit.info else ""
    if operation == "MERGE" and not commit.removes:
        return NewRows.ARRIVED
    return NEW_ROWS.get(operation, NewRows.UNKNOWN)


def _engine(body: Mapping[str, Any]) -> Engine:
    names = (str(body.get("engineInfo") or ""), str(body.get("clientVersion") or ""))
    if any(name.startswith("tandem/") for name in names):
        return Engine.TANDEM
    if any(name.startswith(("delta-rs:", "delta-rs.")) for name in names):
        return Engine.DELTA_RS
    return Engine.OTHER


def _is(rule: AppendRule, body: Mapping[str, Any]) -> bool:
    parameters = body.get("operationParameters")
    mode = parameters.get("mode") if isinstance(parameters, Mapping) else None
    return (
        body.get("operation") == rule.operation
        and rule.engine in (None, _engine(body))
        and body.get("isBlindAppend") in rule.blind
        and rule.mode in (None, mode)
        and rule.ours in (None, _mode(body))
    )


def _ours(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """Tandem's part of a commitInfo; empty for commits of other writers."""
    found = body.get("tandem")
    return found if _engine(body) is Engine.TANDEM and isinstance(found, Mapping) else {}


def _mode(body: Mapping[str, Any]) -> Mode | None:
    """The mode of a commit's operation; None for other writers, and for unknown kinds."""
    model = OPERATIONS.get(str(_ours(body).get("kind")))
    return None if model is None else model.mode


def _is_mapped_rewrite(
    commit: Commit, body: Mapping[str, Any], row_maps: RowMaps, read_vector: ReadVector | None
) -> bool:
    """Whether Tandem made it, and all it added or removed is output or input of a valid map. An
    input that it added again must have lost exactly the rows that the outputs took from it."""
    if body.get("operation") != "OPTIMIZE" or not _ours(body) or not commit.adds:
        return False
    removed = {remove.logged_path: remove for remove in commit.removes}
    cuts = [add for add in commit.adds if add.logged_path in removed]
    outputs = [add for add in commit.adds if add.logged_path not in removed]
    maps = [row_maps.get(add.logged_path) for add in outputs]
    inputs: dict[str, RowMapLike] = {}
    for add, row_map in zip(outputs, maps, strict=True):
        if row_map is None or add.data_change or add.logged_path not in row_map.output_paths:
            return False
    for row_map in {id(found): found for found in maps}.values():
        if row_map is not None:
            inputs.update(dict.fromkeys(row_map.input_paths, row_map))
    if not all(not gone.data_change and path in inputs for path, gone in removed.items()):
        return False
    for add in cuts:
        path = add.logged_path
        if read_vector is None or not _lost_what_was_taken(
            add, removed[path], inputs[path], read_vector
        ):
            return False
    return True


def _lost_what_was_taken(
    now: AddFile, before: RemoveFile, row_map: RowMapLike, read_vector: ReadVector
) -> bool:
    known = row_map.input(now.logged_path)
    taken = span(0, known.rows) - known.dead
    was, is_ = (
        read_vector(vector) if vector is not None else BitMap64()
        for vector in (before.deletion_vector, now.deletion_vector)
    )
    if was is None or is_ is None:
        return False
    return not now.data_change and is_ == was | taken
