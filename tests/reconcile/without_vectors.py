"""The histories of tables without deletion vectors.

Three files of one or two rows. A row's x is `key + 10 * value`; statements choose rows by their
keys. Each step of ours puts what it has decided if no commit has been made since, and else decides
again and makes the edits that are missing: a commit of others may come between any two of them.
After the last one, two steps must be enough.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from math import factorial, prod
from typing import Any, cast

from pyroaring import BitMap64

from reconcile.alphabet import Operation
from reconcile.replaces import Replace, finish_replace, start_replace, step_replace
from reconcile.rewrites import finish_rewrite, start_rewrite, step_rewrite
from reconcile.statements import (
    Merge,
    Statement,
    advance_statement,
    finish_statement,
    start_statement,
)
from reconcile.theirs import (
    Step,
    append,
    foreign,
    foreign_optimize,
    lose_row_maps,
    restore,
    switch_vectors,
)
from reconcile.world import Entry, Row, Serial, World
from tandem.reconcile.model import ChangeKind
from tandem.spec.replace import Scope
from tandem.spec.update import Isolation

STEPS = 3
"""Of each operation of ours, in every order with the commits of others."""


def key(x: int) -> int:
    return x % 10


def table(*, vectors: bool, deleted: bool) -> World:
    """`deleted`: a row was deleted by a vector at a time when they were on."""
    world = World(vectors=vectors)
    a = world.write([(0, 1), (1, 2)])
    b = world.write([(2, 3), (3, 4)])
    z = world.write([(4, 51)])
    rows = [(0, 1), (1, 2), (2, 3), *([] if deleted else [(3, 4)]), (4, 51)]
    entry = Entry(ChangeKind.CHANGE, frozenset(), Serial("create", lambda _: list(rows)))
    world.commit(entry, {a: BitMap64(), b: BitMap64([1] if deleted else []), z: BitMap64()})
    return world


# --- What we do ----------------------------------------------------------------------------------


def of_ours(name: str, start: Callable[[World], object], step: object, end: object) -> Operation:
    steps = (lambda world, _: start(world), *[cast(Step, step)] * (STEPS - 1))
    return Operation(name, steps, cast(Step, end))


def rewrite_of(name: str, files: int, **more: Any) -> Operation:
    def start(world: World) -> object:
        return start_rewrite(world, sorted(world.views[-1])[:files], 99, **more)

    return of_ours(name, start, step_rewrite, finish_rewrite)


def statement_of_ours(statement: Statement) -> Operation:
    start = partial(start_statement, statement=statement)
    return of_ours(statement.name, start, advance_statement, finish_statement)


def replace_of(asked: Replace) -> Operation:
    start = partial(start_replace, asked=asked)
    return of_ours(asked.name, start, step_replace, finish_replace)


def update(name: str, *keys: int, serializable: bool = False, moves: bool = False) -> Statement:
    isolation = Isolation.SERIALIZABLE if serializable else Isolation.WRITE_SERIALIZABLE
    return Statement(
        name, lambda x: key(x) in keys, lambda x, _: x + 100, isolation=isolation, moves=moves
    )


def by_parity(row: Row) -> int:
    return key(row[1]) % 2 * 10 + key(row[1])


OURS: Mapping[str, Operation] = {
    "C": rewrite_of("compaction", 2),
    "Cd": rewrite_of("compaction that copies deleted rows", 2, copies=True),
    "Cs": rewrite_of("sort", 3, layout=by_parity),
    "C2": rewrite_of("compaction, edits in two files", 3, splits=True),
    "U": statement_of_ours(update("update of 1 and 3", 1, 3)),
    "U2": statement_of_ours(update("update of 1 and 2", 1, 2)),
    "UP": statement_of_ours(update("update of the partition", 1, 3, moves=True)),
    "US": statement_of_ours(update("serializable update", 1, 3, serializable=True)),
    "D": statement_of_ours(Statement("delete of 2 and 3", lambda x: key(x) in (2, 3))),
    "X": statement_of_ours(
        Merge(
            "merge that deletes and updates",
            lambda x: key(x) in (1, 2),
            lambda x, _: None if key(x) == 1 else x + 100,
            key_of=key,
            inserts=False,
        )
    ),
    "M": statement_of_ours(
        Merge("upsert of 1", lambda x: key(x) == 1, lambda x, _: x + 100, keys=(1,), key_of=key)
    ),
    "R": replace_of(Replace("replace", Scope.AT_COMMIT, (501,), low=1, high=3, key_of=key)),
    "RS": replace_of(
        Replace("replace at start", Scope.AT_START, (501,), low=1, high=3, key_of=key)
    ),
}

# --- What others do ------------------------------------------------------------------------------


def delete_of(which: int, *, vectors: bool = False) -> Step:
    return foreign(Statement(f"delete of {which}", lambda x: key(x) == which), vectors=vectors)


def update_of(which: int) -> Step:
    change: Callable[[int, int], int] = lambda x, _: x + 1000  # noqa: E731
    return foreign(
        Statement(f"update of {which}", lambda x: key(x) == which, change), vectors=False
    )


def append_an_equal_row(world: World, _: object) -> object:
    """A row that equals one of the first file in all columns."""
    row = (0, 1)
    path = world.write([row])
    serial = Serial("append", lambda before: [*before, row], append=True)
    entry = Entry(ChangeKind.BLIND_APPEND, frozenset([path]), serial)
    world.commit(entry, {**world.views[-1], path: BitMap64()})
    return None


THEIRS: Mapping[str, Step] = {
    "del1": delete_of(1),
    "del4": delete_of(4),
    "upd2": update_of(2),
    "upd3": update_of(3),
    "app": append(71),
    "comp": foreign_optimize(2),
    "dv2": delete_of(2, vectors=True),
    "switch": switch_vectors,
    "rest1": restore(1),
    "rest0": restore(None),
}
MORE: Mapping[str, Step] = {"lose": lose_row_maps, "equal": append_an_equal_row}

# --- Histories -----------------------------------------------------------------------------------

Names = tuple[str, ...]


@dataclass(frozen=True)
class Choice:
    """A beginning, and what happens: our operations, and the commits of others in this order."""

    table: str
    vectors: bool
    deleted: bool
    ours: Names
    theirs: Names

    @property
    def operations(self) -> tuple[Operation, ...]:
        steps = tuple({**THEIRS, **MORE}[name] for name in self.theirs)
        others = [Operation("others: " + ", ".join(self.theirs), steps)] if steps else []
        return (*(OURS[name] for name in self.ours), *others)

    def world(self) -> World:
        return table(vectors=self.vectors, deleted=self.deleted)

    @property
    def described(self) -> str:
        vectors = "on" if self.vectors else "off"
        return f"{self.table}: vectors are {vectors}, {'a' if self.deleted else 'no'} row deleted"

    @property
    def histories(self) -> int:
        """The orders of their steps."""
        steps = STEPS * len(self.ours) + len(self.theirs)
        same = prod(factorial(STEPS) for _ in self.ours) * factorial(len(self.theirs))
        return factorial(steps) // same


Tables = tuple[tuple[bool, bool], ...]
"""Whether vectors are on, and whether a row was deleted by one."""
ANY_TABLE: Tables = tuple(product((False, True), (False, True)))
OFF: Tables = ((False, False),)


@dataclass(frozen=True)
class Histories:
    """All choices of a table, operations of ours, and commits of others."""

    name: str
    tables: Tables
    ours: tuple[Names, ...]
    theirs: tuple[Names, ...]

    @property
    def choices(self) -> Iterator[Choice]:
        for ours, (vectors, deleted), theirs in product(self.ours, self.tables, self.theirs):
            yield Choice(self.name, vectors, deleted, ours, theirs)


def sequences(names: Sequence[str], most: int, least: int = 0) -> tuple[Names, ...]:
    return tuple(
        found for count in range(least, most + 1) for found in product(names, repeat=count)
    )


ALONE = tuple((name,) for name in ("C", "Cd", "Cs", "U", "UP", "D", "X", "M", "R", "US"))
PAIRS = (
    *(("C", name) for name in ("U", "D", "X", "M", "R", "UP", "Cs")),
    *(("Cs", "X"), ("Cd", "X"), ("Cd", "U"), ("UP", "U2"), ("U", "U2"), ("U", "X")),
    *(("M", "X"), ("D", "R"), ("M", "US")),
)
LOST = tuple(names for names in sequences((*THEIRS, "lose"), 2) if "lose" in names)

ALL: tuple[Histories, ...] = (
    Histories("one operation", ANY_TABLE, ALONE, sequences(tuple(THEIRS), 3)),
    Histories("two operations", (*OFF, (True, True)), PAIRS, sequences(tuple(THEIRS), 1)),
    Histories(
        "two operations, two commits of others",
        OFF,
        (("C", "U"), ("C", "X"), ("C", "M"), ("U", "X"), ("Cs", "X")),
        sequences(tuple(THEIRS), 2, 2),
    ),
    Histories(
        "three operations",
        (*OFF, (False, True)),
        (("C", "U", "X"), ("C", "U", "U2"), ("C", "M", "D"), ("Cs", "X", "U")),
        ((),),
    ),
    Histories(
        "three operations, one commit of others",
        OFF,
        (("C", "U", "U2"),),
        sequences(tuple(THEIRS), 1, 1),
    ),
    Histories("row maps lost", ANY_TABLE, (("C", "U"), ("C", "X"), ("U", "U2")), LOST),
    Histories(
        "edits in two files, rows of equal content",
        OFF,
        (("C2",), ("Cs",), ("C2", "X")),
        sequences((*THEIRS, "equal"), 2),
    ),
    Histories(
        "replaces of what was there at the start",
        OFF,
        (("RS",), ("RS", "U"), ("C", "RS")),
        sequences(tuple(THEIRS), 2),
    ),
)


def choices() -> list[Choice]:
    return [choice for histories in ALL for choice in histories.choices]


def some_choice(rng: random.Random) -> Choice:
    """A choice of any kind."""
    histories = rng.choice(ALL)
    return Choice(
        histories.name,
        *rng.choice(histories.tables),
        rng.choice(histories.ours),
        rng.choice(histories.theirs),
    )
