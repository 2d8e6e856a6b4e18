"""Random histories of operations of ours, held at random points, killed, overtaken by another
process or left without answers, beside random commits of deltalake on a real table.

After each step the table must show the rows of a dict, to which each commit was applied in the
order of the log. Rows are identified by `id`: a replace `AtStart` removes those that its start
showed. The model knows the age of each row, which the engine derives from deletion vectors, row
maps on disk, and what the log still has. The pure rule is searched in `tests/reconcile`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

from support.jobs import quick_lake
from support.lake.held import LIMIT_S, Held
from support.lake.lake import Process, reason
from support.lake.timed import DAYS, SCHEMA, Hours, TimedLake, interval, join, moment
from support.lake.timed import table as rows_of
from support.present import present
from tandem.errors import OutcomeUnknown, StorageError
from tandem.locks.store import InProcessLocks
from tandem.operations import attempt_files
from tandem.operations.clean import clean
from tandem.operations.machine.events import Effect, Event, Point
from tandem.operations.ports import LocalClaims
from tandem.operations.session.options import Interceptor
from tandem.planning.cleaning import DAY_MS, CleaningRules
from tandem.spec.resources import Operation
from tandem.spec.status import OperationStatus, Phase

HOURS = 72
AGES_UNKNOWN = ("merge", "replace", "restore", "delete", "update", "optimize")
"""Commits after which rows may be of unknown age, or mixed in a file."""
RULES = CleaningRules(0, staging_ms=0, dead_ms=DAY_MS)
POINTS = (
    Point.PLAN, Point.CLAIM_ATTEMPT, Point.ACQUIRE_LOCKS, Point.PERSIST_PLAN, Point.START_JOB,
    Point.READ_RESULT, Point.RECONCILE, Point.WRITE_SIDECARS, Point.PUT_COMMIT,
    Point.RECORD_RESULT, Point.CLEAN_UNUSED,
)  # fmt: skip
ANSWERS = (Point.PERSIST_PLAN, Point.WRITE_SIDECARS, Point.PUT_COMMIT, Point.RECORD_RESULT)
"""Whose answers may be lost."""


class Driven(Held):
    """Is held at a point, unless it ends before."""

    def _await_hold(self, at: Point | None) -> None:
        with self._changed:
            arrived = self._changed.wait_for(lambda: not at or self._at or self._over, LIMIT_S)
            assert arrived, f"{self._thread.name} hangs: {self.points[-5:]}"

    @property
    def is_over(self) -> bool:
        return self._over


@dataclass
class Ours:
    """`after` gives the rows after its commit, from those before it and those of its start."""

    kind: str
    operation: Operation
    after: Callable[[Hours, Hours], Hours]
    start: int | None = None
    at_start: bool = False
    held: Driven | None = None
    overtaken: list[Driven] = field(default_factory=list)
    was_overtaken: bool = False
    committed: int | None = None


class Storm:
    """One history. `events` says what happened, for a failure."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.chance = random.Random(seed)
        self.lake = quick_lake.make(folder, 0, schema=SCHEMA)
        self.lake.time, self.lake.backoff_limit = DAYS, 6
        self.table = TimedLake(self.lake)
        self.states: list[Hours] = [{}]
        self.kinds = ["create"]
        self.cleaned = False
        self.ours: list[Ours] = []
        self.events: list[str] = []
        self._next_id, self._next_process = 0, 1_000
        self._foreign("append", *self._append())

    @property
    def rows(self) -> Hours:
        return self.states[-1]

    def run(self, steps: int) -> None:
        for _ in range(steps):
            what = self.chance.random()
            if what < 0.35 and len(self.ours) < 4:
                self._begin(self._operation())
            elif what < 0.65 and self.ours:
                self._go_on(self.chance.choice(self.ours), end=0.6)
            elif what < 0.7:
                self._clean()
            else:
                self._foreign(*self._action())
        while self.ours:
            self._go_on(self.chance.choice(self.ours), end=0.9)
        self.table.assert_shows(self.rows)
        for add in self.lake.log.snapshot().adds():
            self.lake.store.head(add.path)

    # Rows

    def _new(self, most: int, first: int = 0, end: int = HOURS) -> Hours:
        count = self.chance.randint(1, most)
        ids = range(self._next_id, self._next_id + count)
        self._next_id += count
        return {id_: self.chance.randrange(first, end) for id_ in ids}

    def _some(self) -> tuple[int, int]:
        first = self.chance.choice([0, 24, 48, self.chance.randrange(HOURS - 1)])
        return first, min(HOURS, first + self.chance.choice([24, 48, 72, 7]))

    def _ids(self, most: int) -> list[int]:
        known = sorted(self.rows)
        return self.chance.sample(known, min(len(known), most))

    def _settle(self, rows: Hours, kind: str, committed: int) -> None:
        """All versions since the last step show what was there; from `committed` on, `rows`."""
        for version in range(len(self.states), self.lake.version + 1):
            self.states.append(rows if version >= committed else self.rows)
            self.kinds.append(kind if version == committed else "")
        assert self.table.rows() == sorted(self.rows.items()), kind

    # Foreign commits, and cleaning

    def _append(self) -> tuple[Callable[[DeltaTable], object], Hours]:
        new = self._new(8)
        return lambda _: self.table.append(new), join(self.rows, new)

    def _action(self) -> tuple[str, Callable[[DeltaTable], object], Hours]:
        kinds = ["append"] * 4 + ["delete", "update", "merge", "insert", "optimize", "z-order"]
        kind = self.chance.choice([*kinds, "replace", "restore"])
        first, end = self._some()
        where = f"ts >= '{moment(first).isoformat()}' AND ts < '{moment(end).isoformat()}'"
        ids = self._ids(3)
        if ids and self.chance.random() < 0.4:
            where = f"id in ({', '.join(map(str, ids))})"
            chosen: Hours = {id_: self.rows[id_] for id_ in ids}
        else:
            chosen = _within(self.rows, first, end)
        hour = self.chance.randrange(HOURS)
        match kind:
            case "append":
                return (kind, *self._append())
            case "delete":
                return kind, lambda table: table.delete(where), _less(self.rows, chosen)
            case "update":
                to = {"ts": f"'{moment(hour).isoformat()}'"}
                moved = dict.fromkeys(chosen, hour)
                return kind, lambda t: t.update(predicate=where, updates=to), {**self.rows, **moved}
            case "merge" | "insert":
                source = {**dict.fromkeys(ids if kind == "merge" else (), hour), **self._new(2)}
                return kind, lambda table: _merge(table, source), {**self.rows, **source}
            case "optimize":
                return kind, lambda table: table.optimize.compact(), self.rows
            case "z-order":
                return "optimize", lambda table: table.optimize.z_order(["ts"]), self.rows
            case "replace":
                new = self._new(5, first, end)
                predicate = (
                    f"ts >= '{moment(first).isoformat()}' AND ts < '{moment(end).isoformat()}'"
                )

                def overwrite(table: DeltaTable) -> None:
                    write_deltalake(table, rows_of(new), mode="overwrite", predicate=predicate)

                return kind, overwrite, {**_less(self.rows, _within(self.rows, first, end)), **new}
            case _:
                version = self.chance.randrange(max(0, self.lake.version - 5), self.lake.version)
                return kind, lambda table: table.restore(version), self.states[version]

    def _foreign(self, kind: str, act: Callable[[DeltaTable], object], after: Hours) -> None:
        before = self.lake.version
        try:
            act(self.lake.foreign())
        except DeltaError:
            after = self.rows  # a restore of what was cleaned, for example
            assert self.lake.version == before
        self.events.append(f"{kind}: version {self.lake.version}, {after}")
        self._settle(after, kind, before + 1)

    def _clean(self) -> None:
        self.cleaned = True
        self.events.append("clean")
        clean(self.lake.table(), RULES)
        self._settle(self.rows, "", -1)

    # Operations of ours

    def _operation(self) -> Ours:
        lake, chance = self.lake, self.chance
        kind = chance.choice(["replace"] * 5 + ["compact"] * 4 + ["ingest", "update", "merge"])
        if kind == "replace":
            return self._replace()
        if kind == "compact":
            chunks = chance.sample([f"2013-03-0{day}" for day in (1, 2, 3)], 2)
            cut = {"semiMajor": {"spanning": "Cut", "chunks": chunks}}
            layout = {"layout": {"strategy": "ZOrder", "columns": ["ts"]}}
            more = chance.choice([cut, cut, layout, {}])
            return Ours(kind, lake.compaction("SemiMajor", **more), lambda rows, _: rows)
        if kind == "ingest":
            new = self._new(5)
            return Ours(kind, self.table.ingest(new), lambda rows, _: {**rows, **new})
        hour = chance.randrange(HOURS)
        if kind == "merge":
            if chance.random() < 0.5:
                new = self._new(3)
                merge = lake.merge(rows_of(new), isolation="Serializable")
                return Ours(kind, merge, lambda rows, _: {**rows, **new})
            # An id that is gone by then must not come again: it would be another row.
            moved = dict.fromkeys(self._ids(3), hour)
            clauses: dict[str, Any] = {"whenMatched": [{"updateAll": {}}]}
            merge = lake.merge(rows_of(moved), isolation="Serializable", **clauses)
            return Ours(kind, merge, lambda rows, _: {**rows, **_of(moved, rows)})
        first, end = self._some()
        where = f"ts >= TIMESTAMP '{moment(first):%Y-%m-%dT%H:%M:%SZ}'"
        where += f" AND ts < TIMESTAMP '{moment(end):%Y-%m-%dT%H:%M:%SZ}'"
        to = f"TIMESTAMP '{moment(hour):%Y-%m-%dT%H:%M:%SZ}'"
        update = lake.update(where, isolation="Serializable", ts=to)
        return Ours(
            kind,
            update,
            lambda rows, _: {**rows, **dict.fromkeys(_within(rows, first, end), hour)},
        )

    def _replace(self) -> Ours:
        chance = self.chance
        first, end = self._some()
        new: Hours = {} if chance.random() < 0.3 else self._new(4, first, end)
        more: dict[str, Any] = {"rows": new} if new else {}
        at_start = chance.random() < 0.75
        start = None
        if not at_start:
            more["scope"] = "AtCommit"
        elif chance.random() < 0.3:
            start = more["startVersion"] = chance.randint(
                max(0, self.lake.version - 5), self.lake.version
            )

        def after(rows: Hours, old: Hours) -> Hours:
            gone = _within(rows, first, end)
            if at_start:
                gone = _of(gone, old)
            return {**_less(rows, gone), **new}

        operation = self.table.replace(interval(first, end), **more)
        return Ours("replace", operation, after, start, at_start)

    def _begin(self, ours: Ours) -> None:
        """A new process, for which those before it are dead."""
        if ours not in self.ours:
            self.ours.append(ours)
        self._next_process += 1
        ports = self.lake.ports(
            locks=InProcessLocks(),
            processes=Process(self._next_process, {self._next_process}),
            local_claims=LocalClaims(),
        )
        losing = random.Random(self.chance.random())

        def run(interceptor: Interceptor) -> OperationStatus:
            loses = _losing(interceptor, losing) if losing.random() < 0.15 else interceptor
            return self.lake.run(ours.operation, interceptor=loses, ports=ports)

        at, after = self.chance.choice(POINTS), self.chance.random() < 0.4
        self.events.append(f"{ours.operation.id} begins, to {at}: {ours.operation.spec}")
        ours.held = Driven(ours.operation.id, run)
        ours.held.start(at, after=after)
        self._look(ours)

    def _go_on(self, ours: Ours, *, end: float) -> None:
        """A step of one that has begun: to its end, to another point, to its death, or another
        process takes it over while it stands still."""
        what = self.chance.random()
        if ours.overtaken and (ours.held is None or what < 0.2):
            self._wake(ours)
        elif ours.held is None:
            self._begin(ours)
        elif what < 0.3:
            self.events.append(f"{ours.operation.id} is killed")
            ours.held.kill()
            ours.held = None
        elif what < 0.4 and not ours.overtaken:
            self.events.append(f"{ours.operation.id} is overtaken")
            ours.overtaken.append(ours.held)
            ours.was_overtaken = True
            self._begin(ours)
        else:
            at = None if self.chance.random() < end else self.chance.choice(POINTS)
            self.events.append(f"{ours.operation.id} goes on to {at}")
            ours.held.go_on(at)
            if at is None:
                self._ended(ours, ours.held.finish())
            else:
                self._look(ours)

    def _wake(self, ours: Ours) -> None:
        """A process that was overtaken goes on: it may commit if no other has, and says so."""
        self.events.append(f"{ours.operation.id} wakes")
        status = ours.overtaken.pop().finish()
        self._commits(ours)
        version = status.result.version if status.result else None
        assert version in (None, ours.committed), (version, ours.committed)

    def _look(self, ours: Ours) -> None:
        if ours.held is not None and ours.held.is_over:
            self._ended(ours, ours.held.finish())
        else:
            self._commits(ours)

    def _commits(self, ours: Ours) -> None:
        for version in range(len(self.states), self.lake.version + 1):
            info = present(self.lake.commit(version).info)
            if info.operation == "ABANDON":
                continue
            tandem = info.body["tandem"]
            assert json.dumps(tandem["resource"]).endswith(f'{ours.operation.id}"')
            assert ours.committed is None, f"{ours.operation.id} commits again"
            ours.committed = version
            self._settle_until(version)
            old: Hours = {}
            if ours.at_start:
                start = present(attempt_files.cutoff_of(self.lake.store, tandem["operation"]))
                assert ours.start in (None, start)
                ours.start, old = start, self.states[start]
            self.events.append(f"{ours.operation.id} commits version {version}")
            self._settle(ours.after(self.rows, old), ours.kind, version)
            return
        self._settle(self.rows, "", -1)

    def _settle_until(self, version: int) -> None:
        while len(self.states) < version:
            self.states.append(self.rows)
            self.kinds.append("")

    def _ended(self, ours: Ours, status: OperationStatus) -> None:
        self.events.append(f"{ours.operation.id} ends: {status.phase} {reason(status)}")
        self._commits(ours)
        ours.held = None
        if ours.overtaken:
            self._wake(ours)
        self.ours.remove(ours)
        version = status.result.version if status.result else None
        if ours.was_overtaken and reason(status) in ("Abandoned", "AlreadyRunning"):
            return  # the other process says how it ended
        assert version == ours.committed, status
        assert version is None or status.phase is Phase.SUCCEEDED, status
        if status.phase is Phase.FAILED:
            assert reason(status) == "Conflict", status
            assert ours.at_start, status
            # Rows of compactions by Tandem and of appends are never of unknown age.
            assert self.cleaned or any(kind in AGES_UNKNOWN for kind in self.kinds), status


def _within(rows: Hours, first: int, end: int) -> Hours:
    return {id_: hour for id_, hour in rows.items() if hour is not None and first <= hour < end}


def _of(rows: Hours, known: Hours) -> Hours:
    return {id_: hour for id_, hour in rows.items() if id_ in known}


def _less(rows: Hours, gone: Hours) -> Hours:
    return {id_: hour for id_, hour in rows.items() if id_ not in gone}


def _merge(table: DeltaTable, source: Hours) -> None:
    merge = table.merge(rows_of(source), "t.id = s.id", "s", "t")
    merge.when_matched_update_all().when_not_matched_insert_all().execute()


def _losing(interceptor: Interceptor, chance: random.Random) -> Interceptor:
    """Some answers are lost: of effects that took place, and of others that did not."""
    left = [3]

    def losing(effect: Effect, call: Callable[[], Event]) -> Event:
        if effect.point not in ANSWERS or not left[0] or chance.random() < 0.5:
            return interceptor(effect, call)
        left[0] -= 1
        if chance.random() < 0.6:
            interceptor(effect, call)
        lost = OutcomeUnknown if effect.point is Point.PUT_COMMIT else StorageError
        raise lost("the answer is lost", resource=str(effect))

    return losing
