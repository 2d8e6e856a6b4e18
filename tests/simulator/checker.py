"""Compares every committed version with a slow, obvious model.

The model is a dictionary from row identity to row. Each commit is applied to it by its meaning
alone; what the version really shows is read from the log's JSON and the files, by a reader of
its own. Differences are classified: lost, doubled, resurrected, wrong value.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import unquote

from mergelog import oracle
from reconcile.world import Entry, Serial, allowed_states
from simulator import edit_invariants, rows
from simulator.foreign import Intent, Model, unchanged
from simulator.invariants import Invariants, Seen, Violation, mode_of
from simulator.merge_log import SimulatedLog
from simulator.rows import Row
from simulator.statements import DELETES, RANDOM, UPDATES, Merge, Statement, drawing
from simulator.world import World
from tandem.delta import dv
from tandem.delta.actions import AddFile, Commit, DeletionVector
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.listing import commit_path
from tandem.errors import ObjectNotFound, Reason
from tandem.mergelog.versions import BASE
from tandem.operations import attempt_files
from tandem.reconcile.classify import classify
from tandem.reconcile.model import ChangeKind
from tandem.spec.common import Mode
from tandem.storage.paths import LOG_FOLDER
from tandem.timeline.segments import segment_name

__all__ = ["Checker", "Violation"]

LOG = f"{LOG_FOLDER}/"
SMALL = 14
"""Histories of at most so many commits are compared with every serial order as well."""


@dataclass
class Checker:
    """Fed with every version as soon as it exists, before anything can be cleaned.

    `batches` are the rows of ingests by operation id, `upserts` the records of appends to the log,
    `merges` what merges mean, `began` which instant was acknowledged when a statement began,
    `days` which `k` the rows have that a replace replaces, if it does not replace all,
    `serializable` the ids of statements with that isolation, `exclusive` how often operations that
    lock exclusively may yield. `touched` says which versions changed files, `serial` what each
    version did, for `check_every_order`.
    """

    world: World
    intents: dict[int, Intent] = field(default_factory=dict)
    batches: dict[str, list[Row]] = field(default_factory=dict)
    upserts: dict[str, tuple[oracle.Event, ...]] = field(default_factory=dict)
    began: Callable[[str], int] = lambda _: -1
    merges: dict[str, Merge] = field(default_factory=dict)
    serializable: set[str] = field(default_factory=set)
    exclusive: dict[str, int] = field(default_factory=dict)
    touched: list[bool] = field(default_factory=list)
    named_segments: dict[str, frozenset[str]] = field(default_factory=dict)
    days: dict[str, int] = field(default_factory=dict)
    by_segment: list[dict[str, set[int]]] = field(default_factory=list)
    invariants: Invariants = field(default_factory=Invariants)
    serial: list[Serial] = field(default_factory=list)
    contents: dict[str, list[Row]] = field(default_factory=dict)
    dead: dict[str, set[int]] = field(default_factory=dict)
    vectors: bool = False
    models: list[Model] = field(default_factory=list)
    files: dict[str, Any] = field(default_factory=dict)
    appended_at: dict[int, int] = field(default_factory=dict)
    changes: set[int] = field(default_factory=set)
    succeeded: dict[str, int] = field(default_factory=dict)
    abandoned: dict[str, int] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)
    batches_done: dict[str, int] = field(default_factory=dict)
    commits: dict[str, Commit] = field(default_factory=dict)
    named: set[str] = field(default_factory=set)
    ever: set[int] = field(default_factory=set)
    log_version: int = -1
    log_base: int = -1
    evidence: edit_invariants.Reader = field(init=False)

    def __post_init__(self) -> None:
        self.evidence = edit_invariants.Reader(self.world)
        self.invariants.tracked = self.world.tracked

    @property
    def version(self) -> int:
        return len(self.models) - 1

    def catch_up(self) -> None:
        """Check all versions that are new, of the table and of its log of blocks."""
        store = self.world.store
        while (content := self.world.content(self.version + 1)) is not None:
            self._check(self.version + 1, _actions(content))
        if self.world.catalog is not None:
            self.world.catalog.check()
            self.invariants.checked["catalog"] += 1
        log = self.world.merge_log
        if log is None:
            return
        while (path := f"{LOG}{commit_path(self.log_version + 1)}") in store.paths():
            self.log_version += 1
            actions = _actions(store.get(path))
            self._check_txns(self.log_version, actions, log.log.log)
            self._note_instant(log, actions)
            self.named |= {LOG + unquote(a["add"]["path"]) for a in actions if "add" in a}
        log.check()
        self.invariants.checked["I-37"] += 1

    def _note_instant(self, log: SimulatedLog, actions: list[dict[str, Any]]) -> None:
        """Upserts, deletes by key and ingests of ours, in the model of the log."""
        for action in actions:
            if action.get("txn", {}).get("appId") == BASE:
                self.log_base = action["txn"]["version"]
        ours = next(a["commitInfo"] for a in actions if "commitInfo" in a).get("tandem") or {}
        events = self.upserts.get(ours.get("operation", ""))
        if events is not None and "abandoned" not in ours:
            log.appended(self.log_version, self.log_base, events)
            self.invariants.checked["upserts"] += 1

    def _check(self, version: int, actions: list[dict[str, Any]]) -> None:
        info = next(a["commitInfo"] for a in actions if "commitInfo" in a)
        before = self.models[-1] if self.models else {}
        live, dead, vectors = dict(self.files), self.dead, self.vectors
        touched = self._replay(actions)
        self._check_txns(version, actions, self.world.log)
        found = self._read()
        seen = Seen(version, actions, live, vectors)
        log = self.world.merge_log
        merged = None if log is None else log.merged_up_to(actions)
        if log is None or merged is None:
            candidates = self._expected(version, info, before, touched, found)
        else:
            candidates = [self._merged(version, log, merged, before)]
        if found not in [Counter(c.values()) for c in candidates]:
            raise Violation(self._difference(version, info, candidates[0], found))
        if seen.ours:
            seen = self._check_edits(seen, dead)
        self.invariants.check(seen, Counter(before.values()), found)
        self._check_lost_maps(seen)
        self.touched.append(touched)
        self._check_exclusive(seen)
        actual = {row.rid: row for row in found}
        self.models.append(actual)
        self.ever |= actual.keys()
        if log is not None:
            log.changes.append(self._change(version, info, log, merged, found))

    def _check_edits(self, seen: Seen, dead: Mapping[str, Set[int]]) -> Seen:
        """What the version must show of edits; it, with what is known of its files."""
        evidence = self.evidence.of(seen, self.contents, dead, self.dead)
        for name, problem in edit_invariants.broken(seen, evidence):
            self.invariants.checked[name] += 1
            if problem:
                raise Violation(f"{name}, version {seen.version}: {problem}")
        heirs = () if evidence.job is None else edit_invariants.heirs_of(seen, evidence)
        return replace(seen, edited=edit_invariants.edited(seen, evidence.edits), heirs=heirs)

    def _check_lost_maps(self, seen: Seen) -> None:
        """R-10: a rewrite whose map is lost is a change, for operations that commit after it."""
        if seen.ours.get("readVersion") is None:
            return
        for version in range(seen.ours["readVersion"] + 1, seen.version):
            commit = self.world.log.commit(version)
            if commit is None or not self.evidence.is_lost(commit):
                continue
            self.invariants.checked["R-10"] += 1
            kind = classify(commit, self.evidence.row_maps()).kind
            if kind is not ChangeKind.CHANGE:
                raise Violation(f"R-10, version {seen.version}: {version} is a {kind}")

    def _check_exclusive(self, seen: Seen) -> None:
        """An attempt that locks exclusively commits on what it has read, and no other does so more
        often than it may yield."""
        operation = str(seen.ours.get("operation", ""))
        most = self.exclusive.get(operation)
        if most is None:
            return
        ends = [
            json.loads(self.world.store.get(path))["reason"]
            for path in self.world.store.paths()
            if path.startswith(f"{attempt_files.attempts(operation)}/")
            and path.endswith("/ended.json")
        ]
        yields = ends.count(Reason.YIELDED)
        since = self.touched[seen.ours["readVersion"] + 1 : seen.version]
        if yields > most or (yields < most and any(since)):
            raise Violation(f"D57, version {seen.version}: {yields} of {most} yields, {since}")
        self.invariants.checked["D57"] += 1

    def _merged(self, version: int, log: SimulatedLog, upto: int, before: Model) -> Model:
        """What a log merge makes of the rows before it."""
        self.changes.add(version)
        state = log.state()
        return self._serial("log merge", before, lambda rows_: log.merged(state, upto, rows_))

    def _change(
        self,
        version: int,
        info: dict[str, Any],
        log: SimulatedLog,
        merged: int | None,
        found: Counter[Row],
    ) -> oracle.Change:
        """The version in the model of the log."""
        if merged is not None:
            return oracle.Merge(merged)
        intent = self.intents.get(version)
        if intent is not None and intent.restored is not None:
            return oracle.Restore(intent.restored)
        parameters = info.get("operationParameters") or {}
        replaces = parameters.get("mode") == "Overwrite" and "predicate" not in parameters
        rows_ = tuple(log.model_row(row) for row in found.elements())
        return oracle.Overwrite(rows_) if replaces else oracle.Become(rows_)

    # What the version shows

    def _replay(self, actions: list[dict[str, Any]]) -> bool:
        touched = False
        for action in actions:
            if "metaData" in action:
                found = action["metaData"]["configuration"].get("delta.enableDeletionVectors")
                self.vectors = found == "true"
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
        by_segment: dict[str, set[int]] = {}
        self.dead = {}
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
            self.dead[path] = dead
            try:
                content = rows.read(self.world.store, path, add["partitionValues"])
            except ObjectNotFound as error:
                raise Violation(f"I-5: a live file is gone: {error}") from None
            self.invariants.checked["I-1"] += 1
            if self.contents.setdefault(path, content) != content:
                raise Violation(f"I-1: {path} has other rows than when it became visible")
            live = [row for i, row in enumerate(content) if i not in dead]
            found.update(live)
            name = _segment_of(path, add)
            by_segment.setdefault(name, set()).update(row.rid for row in live)
        self.by_segment.append(by_segment)
        return found

    def _check_txns(self, version: int, actions: list[dict[str, Any]], log: DeltaLog) -> None:
        """Exactly once, as the log itself must show it."""
        for action in actions:
            app = action.get("txn", {}).get("appId", "")
            if not app.startswith("tandem:"):
                continue
            attempt = action["txn"]["version"]
            self.invariants.checked["I-22"] += 1
            operation, _, what = app.removeprefix("tandem:").partition(":")
            if operation in self.succeeded:
                raise Violation(f"I-22, version {version}: {app} after its success")
            if what == "batches":
                # Each of them once, and in their order.
                if attempt <= self.batches_done.get(operation, 0):
                    raise Violation(f"I-22, version {version}: batch {attempt} of {app} again")
                self.batches_done[operation] = attempt
            elif what == "abandoned":
                self.abandoned[operation] = attempt
            elif what == "closed":
                self.closed.add(operation)
            elif operation in self.closed:
                raise Violation(f"I-22, version {version}: attempt {attempt} of {app}, closed")
            elif attempt <= self.abandoned.get(operation, 0):
                raise Violation(f"I-22, version {version}: abandoned attempt {attempt} of {app}")
            else:
                self.succeeded[operation] = version
                committed = log.commit(version)
                assert committed is not None
                self.commits[operation] = committed

    # What it must show

    def _expected(
        self,
        version: int,
        info: dict[str, Any],
        before: Model,
        touched: bool,
        found: Counter[Row],
    ) -> list[Model]:
        ours = info.get("tandem") or {}
        if version in self.intents:
            return [self._foreign(version, self.intents[version], before)]
        if "abandoned" in ours or version == 0:
            return [self._serial("nothing", before, passable_from=-1)]
        kind, operation = ours["kind"], ours["operation"]
        if mode_of(kind) is Mode.REWRITE:
            return [self._serial(kind, before, passable_from=-1)]
        if mode_of(kind) is Mode.APPEND:
            return [self._appended(version, self.batches[operation], before)]
        if mode_of(kind) is Mode.REPLACE:
            return [self._replaced(version, ours, before)]
        self._check_seen(version, operation)
        merge = self.merges.get(operation)
        if touched or merge is not None:
            self.changes.add(version)
        statement = merge or _statement(ours["statement"])
        serializable = operation in self.serializable
        if serializable:
            met: list[Set[int]] = [before.keys()]
        else:
            met = self._readable(ours["readVersion"], version, before)
        if statement is RANDOM:
            statement = self._drawn(version, operation, before, met, found)
        passable: int | None = None if serializable else ours["readVersion"]
        if not touched and merge is None:
            passable = -1  # it matched nothing, as the search sees it too (reconcile/statements.py)
        self._serial(str(statement), before, statement.effect, passable_from=passable)
        self._check_counts(version, ours, statement, before, met)
        return [_applied(statement, before, to) for to in met]

    def _check_seen(self, version: int, operation: str) -> None:
        """A statement sees what was acknowledged before it began."""
        log = self.world.merge_log
        if log is None:
            return
        self.invariants.checked["statements on a log"] += 1
        unseen = log.unseen(version, self.began(operation))
        if unseen:
            raise Violation(f"version {version}: {operation} has not seen the instants {unseen}")

    def _drawn(
        self,
        version: int,
        operation: str,
        before: Model,
        met: list[Set[int]],
        found: Counter[Row],
    ) -> Statement:
        """I-18: a random statement's values are those of one execution, on all rows it met."""
        for drawn in self.world.jobs.drawn.get(operation, []):
            statement = drawing(RANDOM, drawn)
            for to in met:
                known = all(rid in drawn for rid in to if RANDOM.matches(before[rid]))
                if known and Counter(_applied(statement, before, to).values()) == found:
                    self.invariants.checked["I-18"] += 1
                    return statement
        raise Violation(f"I-18, version {version}: not what one execution of {operation} made")

    def _serial(
        self,
        name: str,
        before: Model,
        effect: Callable[[Model], Model] = unchanged,
        *,
        append: bool = False,
        passable_from: int | None = None,
    ) -> Model:
        """Note what the version did; what it makes of the rows before it."""

        def on_rows(rows_: Any) -> Any:
            return [*effect({row.rid: row for row in rows_}).values()]

        self.serial.append(Serial(name, on_rows, append, passable_from))
        return effect(before)

    def _appended(self, version: int, batch: Sequence[Row], before: Model) -> Model:
        self.appended_at |= {row.rid: version for row in batch}
        found = {row.rid: row for row in batch}
        return self._serial("append", before, lambda rows_: rows_ | found, append=True)

    def _replaced(self, version: int, ours: dict[str, Any], before: Model) -> Model:
        """I-53, I-55: rows of its cutoff are gone, or all of them; later ones stay."""
        start = ours["result"]["replaced"].get("startVersion")
        named = self.named_segments.get(ours["operation"])
        old: Set[int] = self.ever if start is None else self.models[start].keys()
        if named is not None:
            old &= {rid for name in named for rid in self.by_segment[start].get(name, ())}
        day = self.days.get(ours["operation"])
        gone = frozenset(rid for rid in old & before.keys() if day is None or before[rid].k == day)
        batch = self.batches[ours["operation"]]
        new = {row.rid: row for row in batch}
        self.changes.add(version)
        self.invariants.checked["I-53"] += 1
        found = ours["result"]["replaced"]["rows"]
        if found != len(gone):
            raise Violation(f"I-53, version {version}: {found} rows reported, {len(gone)} gone")
        return self._serial(
            "replace",
            before,
            lambda rows_: {rid: row for rid, row in rows_.items() if rid not in gone} | new,
        )

    def _foreign(self, version: int, intent: Intent, before: Model) -> Model:
        if intent.is_change:
            self.changes.add(version)
        if intent.appended:
            return self._appended(version, intent.appended, before)
        passable = None if intent.is_change else -1
        if intent.restored is not None:
            target = self.models[intent.restored]
            return self._serial("restore", before, lambda _: target, passable_from=passable)
        return self._serial("foreign", before, intent.effect, passable_from=passable)

    def _readable(self, read: int, version: int, before: Model) -> list[Set[int]]:
        """Which rows a statement may have met. Write-serializable: what was appended after the
        newest change since the read version may have been overlooked, each append as a whole;
        nothing else may."""
        newest = max((c for c in self.changes if read < c < version), default=read)
        late: dict[int, set[int]] = {}
        for rid in before:
            at = self.appended_at.get(rid, 0)
            if newest < at < version:
                late.setdefault(at, set()).add(rid)
        surely = before.keys() - {rid for rids in late.values() for rid in rids}
        return [
            surely.union(*(rids for i, rids in enumerate(late.values()) if chosen >> i & 1))
            for chosen in range(2 ** len(late))
        ]

    def _check_counts(
        self,
        version: int,
        ours: dict[str, Any],
        statement: Statement,
        before: Model,
        candidates: Sequence[Set[int]],
    ) -> None:
        """I-21: what is reported is what the statement did to rows that were there before."""
        affected = ours["result"].get("rowsAffected") or {}
        found = tuple(affected.get(name, 0) for name in ("updated", "deleted", "inserted"))
        self.invariants.checked["I-14"] += 1
        self.invariants.checked["I-21"] += 1
        possible = set()
        for to in candidates:
            met = [before[rid] for rid in to]
            new = [statement.apply(row) for row in met if statement.matches(row)]
            deleted = new.count(None)
            inserted = len(statement.missing(met)) if isinstance(statement, Merge) else 0
            possible.add((len(new) - deleted, deleted, inserted))
        if found not in possible:
            raise Violation(f"I-21, version {version}: {found} reported, {possible} possible")

    @property
    def is_small(self) -> bool:
        """Whether `check_every_order` tries them all."""
        return len(self.serial) <= SMALL

    def check_every_order(self) -> None:
        """Small histories: the rows at the end are those of some serial execution of the same
        operations on plain lists, from the beginning. Raises Violation."""
        if not self.is_small:
            return
        log = [Entry(ChangeKind.CHANGE, frozenset(), serial) for serial in self.serial]
        found: Any = sorted(self.models[-1].values())
        if found not in allowed_states(log):
            names = [serial.name for serial in self.serial]
            raise Violation(f"no serial order of {names} leaves these rows")

    def _difference(
        self, version: int, info: dict[str, Any], expected: Model, found: Counter[Row]
    ) -> str:
        counts = Counter(row.rid for row in found.elements())
        seen = {row.rid: row for row in found}
        kind = (info.get("tandem") or {}).get("kind", "")
        name = "I-2: " if mode_of(kind) is Mode.REWRITE else "I-14: " if kind else ""
        who = f"{info['operation']} by {info.get('engineInfo')}"
        lines = [f"{name}version {version} ({who}) is wrong:"]
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


def _segment_of(path: str, add: dict[str, Any]) -> str:
    return segment_name(
        AddFile(path, add["partitionValues"], add["size"], add["modificationTime"], True,
                tags=add.get("tags") or {})
    )  # fmt: skip


def _actions(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in data.splitlines() if line.strip()]


def _applied(statement: Statement, before: Model, to: Set[int]) -> Model:
    """The statement's effect on these of the rows; it did not meet the others."""
    met = statement.effect({rid: row for rid, row in before.items() if rid in to})
    return met | {rid: row for rid, row in before.items() if rid not in to}


def _statement(recorded: dict[str, Any]) -> Statement:
    """The statement that a commit says it executed."""
    set_ = {name: text for name, text in (recorded.get("set") or {}).items() if name != "t"}
    column, value = next(iter(set_.items()), ("", ""))
    return _BY_SQL[_plain(recorded["where"]), column, _plain(value)]


def _plain(sql: str) -> str:
    """Canonical SQL as `simulator.statements` spells it."""
    plain = sql.replace("`", "").replace("CAST(", "").replace(" AS BIGINT)", "")
    return plain[1:-1] if plain.startswith("(") and plain.endswith(")") else plain


_BY_SQL = {
    (_plain(s.where), s.column if s.set_to else "", _plain(s.set_to)): s
    for s in (*UPDATES, *DELETES, RANDOM)
}
