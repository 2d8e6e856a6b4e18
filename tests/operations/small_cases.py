"""Statements at random beside foreign commits at random: what the engine makes of the rows by
itself, against the same statement executed by the job alone after those commits.

Values collide on purpose: NULL, NaN, both zeros, texts that differ in case and blanks, rows of
equal content, partition values that others spell in their own way.
"""

from __future__ import annotations

import datetime as dt
import random
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa

from support.jobs.quick_jobs import QuickJobs
from support.jobs.quick_lake import QuickLake, copy, make
from support.lake.held import Killed
from support.statements.tables import comparable
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.scan import scan
from tandem.jobs.formats import InputFile
from tandem.operations.machine.events import Effect, Event, Point
from tandem.operations.model import Work
from tandem.operations.rounds import SmallRoundResult
from tandem.operations.small_rounds import ArrowRounds
from tandem.reconcile.matches import Sources
from tandem.spec.resources import Operation
from tandem.spec.status import OperationStatus

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("n", pa.int32()),
        ("x", pa.float64()),
        ("w", pa.string()),
        ("m", pa.decimal128(10, 2)),
        ("d", pa.date32()),
        ("ts", pa.timestamp("us", "UTC")),
    ]
)
_DAYS = [dt.date(2013, 3, 31), dt.date(1900, 1, 1), dt.date(9999, 12, 31)]
_MOMENTS = [dt.datetime(2013, 3, 31, 1, 0, 0, 1, dt.UTC), dt.datetime(1960, 1, 1, tzinfo=dt.UTC)]
_POOLS: dict[str, list[Any]] = {
    "id": [*range(12), None],
    "n": [0, 1, 2, -1, 2**31 - 1, None],
    "x": [0.0, -0.0, float("nan"), 1.5, float("inf"), None],
    "w": ["a", "A", "a ", "", "ß", "😀", None],
    "m": [Decimal("1.50"), Decimal("-0.01"), Decimal("99999999.99"), None],
    "d": [*_DAYS, None],
    "ts": [*_MOMENTS, None],
}
_ON = [
    "t.id = s.id",
    "t.id <=> s.id",
    "t.id = s.id AND t.w <=> s.w",
    "t.id = s.id AND t.n < s.n",
    "t.w = s.w AND t.n = s.n",
    "t.x = s.x AND t.id = s.id",
    "t.m = s.m AND t.d = s.d AND t.id < 6",
    "t.ts = s.ts AND t.id = s.id AND s.x > 0",
    "t.d = s.d AND t.id = s.id",
    "s.id = t.id AND (t.w = s.w OR s.n IS NULL)",
]
_WHERE = [None, "s.n > 0", "t.n = s.n", "t.x > s.x OR t.w = 'a'", "s.w IN ('a', 'ß', NULL)"]
_WHERE_LEFT = [None, "t.n > 0", "t.w LIKE 'a%'", "t.x <> 0"]
_WHERE_NEW = [None, "s.n IS NOT NULL", "s.x >= 0", "s.w = 'A'"]
_SET: list[dict[str, str]] = [
    {"n": "s.n"},
    {"w": "s.w || t.w", "x": "s.x"},
    {"d": "s.d", "m": "s.m"},
    {"n": "coalesce(t.n, 0) + 1"},
    {"ts": "s.ts", "w": "CASE WHEN t.n = 1 THEN 'one' ELSE s.w END"},
]
_SET_LEFT: list[dict[str, str]] = [{"n": "t.n + 1"}, {"w": "NULL"}, {"x": "t.n", "d": "NULL"}]
_PLAIN_WHERE = [
    "n > 0", "w = 'a'", "id % 3 = 1", "x = 0 OR d IS NULL", "w LIKE 'a%'", "m > 0", "x > 1",
    "d = DATE '9999-12-31'", "ts < TIMESTAMP '2000-01-01T00:00:00Z'", "TRUE", "w <=> NULL",
]  # fmt: skip
_PLAIN_SET: list[dict[str, str]] = [
    {"n": "n + 1"},
    {"w": "w || '!'"},
    {"d": "NULL", "id": "id"},
    {"x": "n", "m": "m"},
]


def rows(chance: random.Random, height: int) -> pa.Table:
    columns = [[chance.choice(_POOLS[name]) for _ in range(height)] for name in SCHEMA.names]
    return pa.table(columns, schema=SCHEMA)


def _distinct(chance: random.Random, height: int) -> pa.Table:
    """Rows of which no two have one id, so that few merges find several for one."""
    table = rows(chance, height)
    ids = pa.array(chance.sample(range(16), height), pa.int64())
    return table.set_column(0, "id", ids)


@dataclass
class Sometimes(ArrowRounds):
    """What the engine is for tests: now and then it leaves a round to the job. `answered` counts
    those that it did not."""

    chance: random.Random
    share: float
    answered: int = field(default=0)

    def __post_init__(self) -> None:
        super().__init__()

    def rows(self, work: Work, inputs: Sequence[InputFile]) -> SmallRoundResult | None:
        return self._counted(super().rows(work, inputs))

    def inserts(self, work: Work, matched: Sources) -> SmallRoundResult | None:
        return self._counted(super().inserts(work, matched))

    def _counted(self, answer: SmallRoundResult | None) -> SmallRoundResult | None:
        # After its files were written: what is dropped leaves them behind.
        if answer is None or self.chance.random() < self.share:
            return None
        self.answered += 1
        return answer


@dataclass(frozen=True)
class Outcome:
    """How a statement ended: its phase, and the rows of the table as texts."""

    phase: str
    rows: tuple[Any, ...]


@dataclass
class Case:
    """The statement of a seed, with small rounds beside foreign commits (`here`), and by the job
    alone after all of them (`serial`)."""

    here: Outcome
    serial: Outcome
    answered: int


def case(folder: Path, seed: int) -> Case:
    """Run one. Others commit before each of the first puts, which are lost for it; sometimes the
    process dies there, and another one goes on."""
    chance = random.Random(seed)
    lake = make(folder, 0, schema=SCHEMA)
    for _ in range(chance.randint(1, 3)):
        lake.append(rows(chance, chance.randint(1, 12)))
    operation = _statement(lake, chance)
    rounds = Sometimes(chance, chance.choice([0, 0, 0.3]))
    dies = chance.choice([0, 0.4])
    puts, met = chance.randint(1, 4), [_copied(lake)]

    def interceptor(effect: Effect, call: Callable[[], Event]) -> Event:
        if effect.point is Point.PUT_COMMIT and len(met) <= puts:
            for _ in range(chance.randint(1, 2)):
                chance.choice(_ACTS)(lake, chance)
            met.append(_copied(lake))
            if chance.random() < dies:
                raise Killed
        return call()

    jobs = QuickJobs(copies=True)
    while True:
        rounds._of = None
        try:
            ports = lake.ports(jobs=jobs, small_rounds=lambda: rounds)
            status = lake.run(operation, interceptor=interceptor, ports=ports)
        except Killed:
            continue
        break
    lake.assert_clean()
    serial = met[-1]
    return Case(_outcome(lake, status), _outcome(serial, serial.run(operation)), rounds.answered)


def _outcome(lake: QuickLake, status: OperationStatus) -> Outcome:
    table = pa.table(scan(DeltaLog(lake.store).snapshot(), lake.store))
    columns = [comparable(table.column(name)) for name in SCHEMA.names]
    return Outcome(status.phase.value, tuple(sorted(zip(*columns, strict=True))))


def _copied(lake: QuickLake) -> QuickLake:
    """The table as it is, for the job alone."""
    folder = lake.path.parent / uuid.uuid4().hex
    made = copy(lake, folder)
    shutil.rmtree(made.path / "_tandem", ignore_errors=True)
    made.small = False
    return made


def _statement(lake: QuickLake, chance: random.Random) -> Operation:
    kind = chance.choice(["update", "delete", "merge", "merge", "merge", "merge"])
    if kind == "update":
        where = chance.choice(_PLAIN_WHERE)
        return lake.update(where, isolation="Serializable", **chance.choice(_PLAIN_SET))
    if kind == "delete":
        return lake.delete(chance.choice(_PLAIN_WHERE), isolation="Serializable")
    height = chance.choice([0, 1, 5, 10])
    source = _distinct(chance, height) if chance.random() < 0.8 else rows(chance, height)
    if height and chance.random() < 0.3:
        source = pa.concat_tables([source, source.slice(0, 1)])
    clauses: dict[str, Any] = {}
    for name, clause in (
        ("whenMatched", _matched),
        ("whenNotMatched", _new),
        ("whenNotMatchedBySource", _left),
    ):
        listed = [clause(chance) for _ in range(chance.randint(0, 2))]
        # Only the last one may be without a condition.
        clauses[name] = [c for c in listed[:-1] if "where" in c] + listed[-1:]
    clauses = {name: listed for name, listed in clauses.items() if listed}
    return lake.merge(source, on=chance.choice(_ON), isolation="Serializable", **clauses)


def _clause(where: str | None, body: dict[str, Any]) -> dict[str, Any]:
    return body if where is None else {"where": where, **body}


def _matched(chance: random.Random) -> dict[str, Any]:
    bodies: list[dict[str, Any]] = [{"delete": {}}, {"updateAll": {}}]
    bodies += [{"update": {"set": set_}} for set_ in _SET]
    return _clause(chance.choice(_WHERE), chance.choice(bodies))


def _new(chance: random.Random) -> dict[str, Any]:
    some = {"insert": {"values": {"id": "s.id", "w": "s.w || '+'", "x": "s.n"}}}
    return _clause(chance.choice(_WHERE_NEW), chance.choice([{"insertAll": {}}, some]))


def _left(chance: random.Random) -> dict[str, Any]:
    bodies: list[dict[str, Any]] = [{"delete": {}}]
    bodies += [{"update": {"set": set_}} for set_ in _SET_LEFT]
    return _clause(chance.choice(_WHERE_LEFT), chance.choice(bodies))


def _append(lake: QuickLake, chance: random.Random) -> None:
    lake.append(rows(chance, chance.randint(1, 6)))


def _delete(lake: QuickLake, chance: random.Random) -> None:
    lake.foreign().delete(f"id IN ({chance.randint(0, 11)}, {chance.randint(0, 11)})")


def _update(lake: QuickLake, chance: random.Random) -> None:
    lake.foreign().update(updates={"id": "id + 1"}, predicate=f"id < {chance.randint(1, 12)}")


def _overwrite(lake: QuickLake, chance: random.Random) -> None:
    from deltalake import write_deltalake

    write_deltalake(lake.location, rows(chance, 8), mode="overwrite")


def _restore(lake: QuickLake, chance: random.Random) -> None:
    if lake.version > 1:
        lake.foreign().restore(chance.randint(1, lake.version - 1))


def _compact(lake: QuickLake, _chance: random.Random) -> None:
    lake.foreign().optimize.compact()


_ACTS: list[Callable[[QuickLake, random.Random], None]] = [
    _append, _append, _delete, _update, _update, _overwrite, _restore, _compact,
]  # fmt: skip
