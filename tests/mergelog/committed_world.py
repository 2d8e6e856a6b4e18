"""A `World` whose two logs are logs: commits of the base table under the names that engines give
them, read by the real `BaseHistory` from what is left of both.

The first commits of the base table go when its history is cut. What may be refused then is decided
by the world's own list of what happened, not by what is read.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from mergelog.oracle import (
    Change,
    Insert,
    Merge,
    Overwrite,
    Rearranged,
    Restore,
    Row,
    least,
)
from mergelog.world import MergePlan, World
from tandem.delta.actions import (
    Action,
    AddFile,
    Commit,
    CommitInfo,
    Metadata,
    Protocol,
    RemoveFile,
    Txn,
)
from tandem.delta.log import files
from tandem.delta.log.snapshot import Snapshot
from tandem.errors import BaseHistoryGap, BaseReplaced, LogGap, VersionNotFound
from tandem.mergelog.base_history import BaseHistory
from tandem.mergelog.boundaries import BaseChange
from tandem.mergelog.log_table import MergeLog, state_of
from tandem.mergelog.versions import BASE, MARK, MERGED, WRITER, BlockLogState, tags_of

LOG_ID = "the log"
_PROTOCOL = Protocol(3, 7)
_SCHEMA = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": name, "type": "long", "nullable": True, "metadata": {}} for name in ("k", "o")
        ],
    }
)

_Parameters = dict[str, Any]
_ORDINARY: tuple[tuple[str, _Parameters], ...] = (
    ("UPDATE", {"predicate": '["k = 1"]'}),
    ("DELETE", {"predicate": '["k = 1"]'}),
    ("MERGE", {"predicate": '["t.k = s.k"]'}),
    ("WRITE", {"mode": "Overwrite", "predicate": "k = 1"}),
)
_OVERWRITES: tuple[tuple[str, _Parameters], ...] = (
    ("WRITE", {"mode": "Overwrite", "partitionBy": "[]"}),
    ("STREAMING UPDATE", {"outputMode": "Complete"}),
    ("CREATE OR REPLACE TABLE AS SELECT", {}),
    ("CLONE", {}),
)
_EMPTIES: tuple[tuple[str, _Parameters], ...] = (
    ("TRUNCATE", {}),
    ("DELETE", {"predicate": "[]"}),
    ("DELETE", {"predicate": '["true"]'}),
    ("REPLACE TABLE", {}),
)
_REPLACES = ("CREATE OR REPLACE TABLE AS SELECT", "REPLACE TABLE")
"""The table has another id then."""


@dataclass
class CommittedWorld(World):
    """`cut` is the first version of the base table that is left."""

    seed: int = 0
    cut: int = 0
    commits: list[Commit] = field(default_factory=list)
    contents_of_base: list[frozenset[str]] = field(default_factory=list)
    ids: list[str] = field(default_factory=list)
    named: int = 0

    def __post_init__(self) -> None:
        self.chance = Random(self.seed)
        self._snapshots: dict[tuple[str, int], Snapshot] = {}
        self._commit("CREATE TABLE", {}, frozenset(), "base")
        self.log_double = cast(
            MergeLog,
            SimpleNamespace(
                base=SimpleNamespace(
                    store=SimpleNamespace(location="base"),
                    snapshot=self._base_snapshot,
                    commits=self._commits,
                    versions=lambda: (self.cut, self.base),
                ),
                log=SimpleNamespace(versions=lambda: (self.archived, len(self.log) - 1)),
                store=SimpleNamespace(location="log"),
                snapshot=self._log_snapshot,
            ),
        )

    # What is written

    def commit_base(self, change: Change, effect: BaseChange, rows: Sequence[Row]) -> None:
        self.now += 1  # restores by time need versions of different times
        super().commit_base(change, effect, rows)
        live, id_ = self.contents_of_base[-1], self.ids[-1]
        txns: tuple[Action, ...] = ()
        match change:
            case Insert():
                name, parameters = "WRITE", {"mode": "Append"}
                live |= self._new_file(rows=change.rows)
            case Rearranged():
                name, parameters, live = "OPTIMIZE", {}, self._new_file(rows=rows)
            case Overwrite():
                name, parameters = self.chance.choice(_OVERWRITES if rows else _EMPTIES)
                live = self._new_file(rows=rows)
                if name in _REPLACES:
                    id_ = f"base-{self.base}"
            case Restore(version):
                name, parameters = "RESTORE", self._restored(version)
                live, id_ = self.contents_of_base[version], self.ids[version]
            case Merge(upto):
                name, parameters, txns = "MERGE", {}, (Txn(MERGED + LOG_ID, upto, self.now),)
                live = self._new_file(rows=rows)
            case _:
                name, parameters = self.chance.choice(_ORDINARY)
                live = self._new_file(rows=rows)
        self._commit(name, parameters, live, id_, *txns)

    def _restored(self, version: int) -> _Parameters:
        """By version, or by its time, as engines log it: in milliseconds, or as it was typed in
        some time zone."""
        how = self.chance.random()
        if how < 0.45:
            return {"version": str(version)}
        time_ms = self.base_times[version]
        if how < 0.9:
            return {"timestamp": str(time_ms)}
        zone_ms = self.chance.randint(-12, 14) * 3_600_000
        moment = datetime.fromtimestamp((time_ms + zone_ms) / 1000, UTC)
        return {"timestamp": f"{moment:%Y-%m-%d %H:%M:%S.%f}"}

    def _new_file(self, *, rows: Sequence[Row]) -> frozenset[str]:
        self.named += 1
        return frozenset({f"file-{self.named}"} if rows else ())

    def _commit(
        self,
        name: str,
        parameters: _Parameters,
        live: frozenset[str],
        id_: str,
        *txns: Action,
    ) -> None:
        before = self.contents_of_base[-1] if self.commits else frozenset[str]()
        info = CommitInfo({"operation": name, "operationParameters": parameters})
        metadata = [_metadata(id_)] if not self.ids or id_ != self.ids[-1] else []
        actions: list[Action] = [info, *metadata, *txns]
        actions += [RemoveFile(path, self.now, True) for path in sorted(before - live)]
        actions += [_add(path) for path in sorted(live - before)]
        self.commits.append(Commit(len(self.commits), self.now, tuple(actions)))
        self.contents_of_base.append(live)
        self.ids.append(id_)

    def cut_base(self, first: int) -> None:
        """The history of the base table begins at this version now."""
        assert self.cut <= first <= self.base
        self.cut = first

    # What is left to read

    def _base_snapshot(
        self, version: int | None = None, *, timestamp_ms: int | None = None
    ) -> Snapshot:
        if timestamp_ms is not None:
            times = enumerate(self.base_times)
            version = max((v for v, time in times if time <= timestamp_ms), default=-1)
        version = self.base if version is None else version
        if not self.cut <= version <= self.base:
            raise VersionNotFound(f"version {version}")
        return self._snapshot(
            "base",
            version,
            lambda: _snapshot(
                "base",
                version,
                self.base_times[version],
                _metadata(self.ids[version]),
                {},
                [_add(path) for path in sorted(self.contents_of_base[version])],
            ),
        )

    def _commits(self, first: int, last: int) -> list[Commit]:
        if first < self.cut:
            raise LogGap(f"versions {first} to {last}", first_available=self.cut)
        return self.commits[first : last + 1]

    def _log_snapshot(self, version: int | None = None) -> Snapshot:
        version = len(self.log) - 1 if version is None else version
        if not self.archived <= version < len(self.log):
            raise VersionNotFound(f"version {version} of the log")
        return self._snapshot("log", version, partial(self._of_log, version))

    def _of_log(self, version: int) -> Snapshot:
        state = self.log[version]
        configuration = {
            "tandem.log.keys": '["k"]',
            "tandem.log.orderingColumn": "o" if self.ordered else "",
            "tandem.log.baseId": state.base_id,
        }
        txns = {name: Txn(name, at, 0) for name, at in ((BASE, state.base), (MARK, state.mark))}
        if any(append.instant <= version for append in self.appends):
            txns[f"{WRITER}w"] = Txn(f"{WRITER}w", 0, 0)
        adds = [_add(b.path, b.size, tags_of(b)) for b in state.live.values()]
        metadata = _metadata(LOG_ID, configuration)
        return _snapshot("log", version, self.log_times[version], metadata, txns, adds)

    def _snapshot(self, which: str, version: int, make: Any) -> Snapshot:
        if (which, version) not in self._snapshots:
            self._snapshots[which, version] = make()
        return self._snapshots[which, version]

    # The fold

    def fold(self, instant: int, base: int) -> BlockLogState:
        return self._history(instant).at(base)

    def state_at(self, base: int) -> BlockLogState:
        history = self._history(len(self.log) - 1)
        state = history.before(base)
        self.read.add(history.oldest_instant)
        return state

    def _history(self, instant: int) -> BaseHistory:
        return BaseHistory(self.log_double, self._log_snapshot(instant))

    def view(self, version: int | None = None) -> list[Row]:
        """As `MergedView.open`."""
        newest = self._log_snapshot()
        base = self.base if version is None else version
        history = BaseHistory(self.log_double, newest)
        ahead = version is None or base >= state_of(newest).base
        state = history.at(base) if ahead else history.before(base)
        rows = self.rows_of(state, base)
        return sorted(rows, key=lambda row: (row.key, least(row.order), row.value))

    def commit_merge(self, plan: MergePlan) -> bool:
        try:
            return super().commit_merge(plan)
        except (BaseHistoryGap, BaseReplaced):
            assert not self.is_certain(self.base, plan.instant)
            return False

    # What must be readable

    def is_certain(self, version: int, newest: int | None = None) -> bool:
        """Whether all is left that the view of a base version follows from, by what happened.
        `newest` is the newest version of the log that counts. It never is after a restore to a time
        without a zone, which may mean several versions."""
        log = self.log if newest is None else self.log[: newest + 1]
        instant = max(at for at, state in enumerate(log) if state.base <= version)
        if instant < self.archived:
            return False
        return all(self._is_left(c, newest) for c in range(log[instant].base + 1, version + 1))

    def _is_left(self, version: int, newest: int | None) -> bool:
        match self.changes[version]:
            case Restore(to):
                time = str(_parameters(self.commits[version]).get("timestamp", ""))
                read = min(to, version) if time else version
                return ":" not in time and self.cut <= read and self.is_certain(to, newest)
            case Overwrite():
                return self.cut < version  # its files are compared with those of the version before
            case _:
                return self.cut <= version


def _parameters(commit: Commit) -> _Parameters:
    assert commit.info is not None
    return cast(_Parameters, commit.info.body["operationParameters"])


def _metadata(id_: str, configuration: dict[str, str] | None = None) -> Metadata:
    return Metadata(id_, _SCHEMA, (), configuration or {})


def _add(path: str, size: int = 1, tags: dict[str, str] | None = None) -> AddFile:
    return AddFile(path, {}, size, 0, True, tags=tags or {})


def _snapshot(
    location: str,
    version: int,
    time: int,
    metadata: Metadata,
    txns: dict[str, Txn],
    adds: list[AddFile],
) -> Snapshot:
    table = files.from_adds(adds)
    return Snapshot(location, version, time, metadata, _PROTOCOL, txns, {}, table)
