"""Compares every committed version with a slow, obvious model.

The model is a dictionary from row identity to row. Each commit is applied to it by its meaning
alone; what the version really shows is read from the log's JSON and the files, by a reader of
its own. Differences are told apart: lost, doubled, resurrected, wrong value.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from simulator import rows
from simulator.foreign import Intent
from simulator.rows import Row
from simulator.statements import BY_SQL, Statement
from simulator.world import World
from tandem.delta import dv
from tandem.delta.actions import Commit, DeletionVector
from tandem.delta.names import commit_path
from tandem.errors import ObjectNotFound

Model = dict[int, Row]


class Violation(AssertionError):
    """The table shows rows that no serial order of the operations gives."""


@dataclass
class Checker:
    """Fed with every version as soon as it exists, before anything can be cleaned.

    `batches` are the rows of ingests by operation id, `serializable` the ids of statements
    with that isolation.
    """

    world: World
    intents: dict[int, Intent] = field(default_factory=dict)
    batches: dict[str, list[Row]] = field(default_factory=dict)
    serializable: set[str] = field(default_factory=set)
    models: list[Model] = field(default_factory=list)
    files: dict[str, Any] = field(default_factory=dict)
    appended_at: dict[int, int] = field(default_factory=dict)
    changes: set[int] = field(default_factory=set)
    succeeded: dict[str, int] = field(default_factory=dict)
    abandoned: dict[str, int] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    commits: dict[str, Commit] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)
    ever: set[int] = field(default_factory=set)

    @property
    def version(self) -> int:
        return len(self.models) - 1

    def catch_up(self) -> None:
        """Check all versions that are new."""
        while True:
            path = commit_path(self.version + 1)
            if path not in self.world.store.paths():
                return
            self._check(self.version + 1, self.world.store.get(path))

    def _check(self, version: int, data: bytes) -> None:
        actions = [json.loads(line) for line in data.splitlines() if line.strip()]
        info = next(a["commitInfo"] for a in actions if "commitInfo" in a)
        before = self.models[-1] if self.models else {}
        touched = self._replay(actions)
        self._check_txns(version, actions)
        found = self._read()
        candidates = self._expected(version, info, before, touched)
        if found not in [Counter(c.values()) for c in candidates]:
            raise Violation(self._difference(version, info, candidates[0], found))
        actual = {row.rid: row for row in found}
        self.models.append(actual)
        self.ever |= actual.keys()

    # What the version shows

    def _replay(self, actions: list[dict[str, Any]]) -> bool:
        touched = False
        for action in actions:
            if "remove" in action:
                self.files.pop(unquote(action["remove"]["path"]), None)
                touched = True
        for action in actions:
            if "add" in action:
                self.files[unquote(action["add"]["path"])] = action["add"]
                self.named.add(unquote(action["add"]["path"]))
                touched = True
        return touched

    def _read(self) -> Counter[Row]:
        found: Counter[Row] = Counter()
        for path, add in self.files.items():
            dead: set[int] = set()
            body = add.get("deletionVector")
            if body is not None:
                vector = DeletionVector(
                    body["storageType"],
                    body["pathOrInlineDv"],
                    body["sizeInBytes"],
                    body["cardinality"],
                    body.get("offset"),
                )
                dead = set(dv.load(self.world.store, vector))
            try:
                content = rows.read(self.world.store, path)
            except ObjectNotFound as error:
                raise Violation(f"a live file is gone: {error}") from None
            found.update(row for i, row in enumerate(content) if i not in dead)
        return found

    def _check_txns(self, version: int, actions: list[dict[str, Any]]) -> None:
        """Exactly once, as the log itself must show it."""
        for action in actions:
            app = action.get("txn", {}).get("appId", "")
            if not app.startswith("tandem:"):
                continue
            attempt = action["txn"]["version"]
            operation, _, what = app.removeprefix("tandem:").partition(":")
            if operation in self.succeeded:
                raise Violation(f"version {version}: {app} after its success")
            if what == "abandoned":
                self.abandoned[operation] = attempt
            elif what == "closed":
                self.closed.add(operation)
            elif operation in self.closed:
                raise Violation(f"version {version}: attempt {attempt} of {app}, which is closed")
            elif attempt <= self.abandoned.get(operation, 0):
                raise Violation(f"version {version}: abandoned attempt {attempt} of {app} commits")
            else:
                self.succeeded[operation] = version
                committed = self.world.log.commit(version)
                assert committed is not None
                self.commits[operation] = committed

    # What it must show

    def _expected(
        self, version: int, info: dict[str, Any], before: Model, touched: bool
    ) -> list[Model]:
        ours = info.get("tandem") or {}
        if version in self.intents:
            return [self._foreign(version, self.intents[version], before)]
        if "abandoned" in ours or version == 0:
            return [before]
        kind, operation = ours["kind"], ours["operation"]
        if kind == "TableCompaction":
            return [before]
        if kind == "TableIngest":
            batch = self.batches[operation]
            self.appended_at |= {row.rid: version for row in batch}
            return [before | {row.rid: row for row in batch}]
        if touched:
            self.changes.add(version)
        recorded = ours["statement"]
        set_v = (recorded.get("set") or {}).get("v", "")
        statement = BY_SQL[_plain(recorded["where"]), _plain(set_v)]
        return self._statement(statement, operation, ours["readVersion"], version, before)

    def _foreign(self, version: int, intent: Intent, before: Model) -> Model:
        if intent.is_change:
            self.changes.add(version)
        if intent.restored is not None:
            return self.models[intent.restored]
        if intent.statement is not None:
            return _applied(intent.statement, before, before.keys())
        self.appended_at |= {row.rid: version for row in intent.appended}
        return before | {row.rid: row for row in intent.appended}

    def _statement(
        self, statement: Statement, operation: str, read: int, version: int, before: Model
    ) -> list[Model]:
        """Write-serializable: what was appended after the newest change since the read version
        may have been overlooked, each append as a whole; nothing else may."""
        if operation in self.serializable:
            return [_applied(statement, before, before.keys())]
        newest = max((c for c in self.changes if read < c < version), default=read)
        late: dict[int, set[int]] = {}
        for rid in before:
            at = self.appended_at.get(rid, 0)
            if newest < at < version:
                late.setdefault(at, set()).add(rid)
        found = []
        surely = before.keys() - {rid for rids in late.values() for rid in rids}
        for chosen in range(2 ** len(late)):
            extra = [rids for i, rids in enumerate(late.values()) if chosen >> i & 1]
            found.append(_applied(statement, before, surely.union(*extra)))
        return found

    def _difference(
        self, version: int, info: dict[str, Any], expected: Model, found: Counter[Row]
    ) -> str:
        counts = Counter(row.rid for row in found.elements())
        seen = {row.rid: row for row in found}
        lines = [f"version {version} ({info['operation']} by {info.get('engineInfo')}) is wrong:"]
        lost = sorted(expected.keys() - seen.keys())
        extra = sorted(seen.keys() - expected.keys())
        resurrected = [rid for rid in extra if rid in self.ever]
        invented = [rid for rid in extra if rid not in self.ever]
        doubled = sorted(rid for rid, count in counts.items() if count > 1)
        wrong = sorted(rid for rid in expected.keys() & seen.keys() if expected[rid] != seen[rid])
        for name, rids in (
            ("lost", lost),
            ("doubled", doubled),
            ("resurrected", resurrected),
            ("invented", invented),
            ("wrong value", wrong),
        ):
            if rids:
                lines.append(f"  {name}: {rids}")
        for rid in wrong[:5]:
            lines.append(f"    {rid}: expected {expected[rid]}, found {seen[rid]}")
        return "\n".join(lines)


def _applied(statement: Statement, before: Model, to: Any) -> Model:
    after = {}
    for rid, row in before.items():
        new = statement.apply(row) if rid in to else row
        if new is not None:
            after[rid] = new
    return after


def _plain(sql: str) -> str:
    """Canonical SQL as `simulator.statements` spells it."""
    plain = sql.replace("`", "").replace("CAST(", "").replace(" AS BIGINT)", "")
    return plain[1:-1] if plain.startswith("(") and plain.endswith(")") else plain
