"""A table and operations on it whose effects commute: whatever is killed, retried or overtaken,
the result is known, and every version in between must show some of them whole.

    ledger = Ledger(quick_lake.make(folder))
    operation = ledger.update()          # v + 15 where k = 1: once each, in whatever order
    …
    ledger.assert_serial()               # all of them happened, each once, one after the other
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from dataclasses import dataclass, field

from deltalake.exceptions import CommitFailedError

from support.jobs.quick_lake import QuickLake
from support.lake.lake import difference
from support.lake.rows import Row, Rows, join, k_is, plus, rows, without
from tandem.spec.resources import Operation

Effect = Callable[[Rows], Rows]


@dataclass
class Ledger:
    """`lake` begins with rows of ids from 0 to 39. What is added has ids from 1000 on, or below 0
    and then `k` = 0, and no statement touches it."""

    lake: QuickLake
    effects: dict[str, Effect] = field(default_factory=dict)
    _fresh: dict[str, set[Row]] = field(default_factory=dict)
    _made: int = 0

    def __post_init__(self) -> None:
        self.first = self.lake.by_deltalake()

    def make(self, kind: str, **spec: object) -> Operation:
        """One more operation of a plain case (`support.cases`): the segment that a SegmentRewrite
        names, another operation may replace. Its effect is expected from now on."""
        self._made += 1
        number = self._made
        match kind:
            case "compaction":
                operation = self.lake.compaction("Major", **spec)
                effect: Effect = lambda before: before  # noqa: E731
            case "update":
                # `greatest` is the job's to evaluate: so there are rounds of the job.
                set_ = {"v": "greatest(v, v) + 15"}
                body = {"update": {"where": "id < 40 AND k = 1", "set": set_}}
                operation = self.lake.resource("TableUpdate", {**body, **spec})
                effect = _plus
            case "delete":
                victim = 39 - number % 30
                operation = self.lake.delete(f"id = {victim}", **spec)
                effect = _without(victim)
            case "ingest":
                fresh = rows(range(1000 + 10 * number, 1005 + 10 * number))
                operation = self.lake.ingest(fresh, **spec)
                effect = _with(fresh)
                self._fresh[operation.metadata.name] = set(fresh)
            case _:
                raise ValueError(kind)
        self.effects[operation.metadata.name] = effect
        return operation

    def append(self) -> None:
        """A foreign writer's load, at once. By its statistics any statement might concern it; by
        its rows none does."""
        self._made += 1
        first = 1000 + 10 * self._made
        fresh = rows([-5 * self._made, *range(first, first + 3)])
        self.effects[f"foreign-{self._made}"] = _with(fresh)
        for last in (False, False, True):
            try:
                self.lake.append(fresh)
                return
            except CommitFailedError:
                # deltalake's append gives up beside deletes of any writer; a writer tries again.
                if last:
                    raise

    def forget(self, operation: Operation) -> None:
        """It must have no effect: it fails, or was deleted in time."""
        del self.effects[operation.metadata.name]

    def has_happened(self, operation: Operation) -> bool:
        """Whether the last version shows its effect: of an ingest only, whose rows are its own."""
        return bool(self._fresh[operation.metadata.name] & set(self.lake.by_deltalake()))

    @property
    def expected(self) -> Rows:
        found = self.first
        for effect in self.effects.values():
            found = effect(found)
        return tuple(sorted(found))

    def history(self) -> list[Rows]:
        """What versions show, each state once."""
        found: list[Rows] = []
        for version in range(self.lake.first_version, self.lake.version + 1):
            shown = self.lake.by_deltalake(version)
            if not found or found[-1] != shown:
                found.append(shown)
        return found

    def assert_serial(self) -> None:
        """Every version shows the effects of some operations, each whole and once; the last one
        shows all; and two readers agree about it."""
        history = self.history()
        assert difference(history[0], self.first) == ""
        left = dict(self.effects)
        for before, after in itertools.pairwise(history):
            steps = [name for name, effect in left.items() if effect(before) == after]
            assert steps, f"no operation explains {difference(after, before)}; left: {list(left)}"
            del left[steps[0]]
        without_trace = {n: e for n, e in left.items() if e(history[-1]) != history[-1]}
        assert not without_trace, f"never happened: {json.dumps(sorted(without_trace))}"
        assert difference(history[-1], self.expected) == ""
        assert difference(self.lake.by_tandem(), self.expected) == "", "tandem"


def _plus(before: Rows) -> Rows:
    return plus(before, lambda row: row[0] < 40 and k_is(1)(row), 15)


def _without(victim: int) -> Effect:
    return lambda before: without(before, lambda row: row[0] == victim)


def _with(fresh: Rows) -> Effect:
    return lambda before: join(before, fresh)
