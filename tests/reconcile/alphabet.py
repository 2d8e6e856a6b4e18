"""The operations whose histories `reconcile.search` plays: each a few steps on a `World`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from reconcile.replaces import Replace, finish_replace, start_replace, step_replace
from reconcile.rewrites import decide_rewrite, finish_rewrite, start_rewrite
from reconcile.statements import (
    Merge,
    Running,
    Statement,
    carry_statement,
    finish_statement,
    start_statement,
    step_statement,
)
from reconcile.theirs import (
    FOREIGN_DELETE,
    FOREIGN_DELETE_ALL,
    FOREIGN_MERGE,
    FOREIGN_UPDATE,
    Step,
    append,
    clean_log,
    clean_versions,
    foreign,
    foreign_insert_only_merge,
    foreign_optimize,
    lose_row_maps,
    nothing_of_note,
    overwrite,
    purge,
    replace_where,
    restore,
    switch_vectors,
)
from reconcile.world import Row, World
from tandem.reconcile.statement import ReadyToCommit
from tandem.spec.replace import Scope
from tandem.spec.update import Isolation


@dataclass(frozen=True)
class Operation:
    """`end`: what is left to do after all steps of all operations."""

    name: str
    steps: tuple[Step, ...]
    end: Step | None = None


# --- Statements: odd and even, so that each makes rows that the others match ------------------

UPDATE = Statement("update odd", lambda x: x % 2 == 1, lambda x, _: 2 * x + 1)
DELETE = Statement("delete thirds", lambda x: x % 3 == 0)
DELETE_ALL = Statement("delete all", lambda _: True)
SERIALIZABLE_UPDATE = Statement(
    "serializable update", UPDATE.matches, UPDATE.change, Isolation.SERIALIZABLE
)
SERIALIZABLE_DELETE = Statement("serializable delete", DELETE.matches, None, Isolation.SERIALIZABLE)
RANDOM_UPDATE = Statement(
    "random update", UPDATE.matches, lambda x, token: x + 1000 * token, deterministic=False
)

UPSERT = Merge("upsert", lambda x: x in (3, 5, 7), lambda x, _: x + 10, keys=(3, 5, 7))
# Matched rows are deleted if even, else updated; rows of no key that are thirds are deleted.
MIXED_MERGE = Merge(
    "merge of all clauses",
    lambda x: x in (4, 5, 8) or x % 3 == 0,
    lambda x, _: None if x % 2 == 0 or x % 3 == 0 else 2 * x,
    keys=(4, 5, 8, 9),
)
UNRECORDED = Merge(
    "upsert without a record", UPSERT.matches, UPSERT.change, keys=UPSERT.keys, records=False
)
# Of the rows of a key some stay as they are: they keep it from being inserted all the same.
KEEPING_MERGE = Merge(
    "merge that keeps rows", lambda x: x == 5, lambda x, _: x + 2, keys=(3, 5, 7, 8)
)
INSERT_ONLY = Merge("insert-only merge of ours", lambda _: False, lambda x, _: x, keys=(3, 7))
MIXED_WITHOUT_INSERTS = Merge(
    "merge without inserts", MIXED_MERGE.matches, MIXED_MERGE.change, keys=(4, 5, 8), inserts=False
)
SERIALIZABLE_MERGE = Merge(
    "serializable merge", UPSERT.matches, UPSERT.change, Isolation.SERIALIZABLE, keys=UPSERT.keys
)
# Rounds and inserts that are evaluated without a job.
SMALL_UPSERT = replace(UPSERT, name="small upsert", small=True)
SMALL_KEEPING_MERGE = replace(KEEPING_MERGE, name="small merge that keeps rows", small=True)
SMALL_INSERT_ONLY = replace(INSERT_ONLY, name="small insert-only merge", small=True)
SMALL_SERIALIZABLE_MERGE = replace(SERIALIZABLE_MERGE, name="small serializable merge", small=True)

# --- Replaces: of the rows whose x is in an interval ---------------------------------------------

AT_START = Replace("replace at start", Scope.AT_START, (3, 5))
AT_COMMIT = Replace("replace at commit", Scope.AT_COMMIT, (3, 5))
DROP_AT_START = Replace("drop at start", Scope.AT_START, low=4, high=99)
DROP_AT_COMMIT = Replace("drop at commit", Scope.AT_COMMIT, low=4, high=99)
FROM_AN_EARLIER_VERSION = Replace("replace from an earlier version", Scope.AT_START, (5,), back=1)
REPAIR = Replace("replace of one segment", Scope.AT_START, (1, 3), first_file=True)
EVERYTHING = Replace("replace of everything", Scope.AT_START, (3,), low=0, high=99)

# --- Layouts: none of them keeps the order of rows ----------------------------------------------


def by_value(row: Row) -> int:
    """A sort: descending, since rows are loaded more or less ascending."""
    return -row[1]


def z_order(row: Row) -> int:
    """The bits of the identity and of x in turns."""
    return sum(
        ((row[0] >> bit) & 1) << (2 * bit) | ((row[1] >> bit) & 1) << (2 * bit + 1)
        for bit in range(10)
    )


# --- Cuts: a compaction takes the rows of one chunk and leaves the others ------------------------


def low(row: Row) -> bool:
    return row[1] < 5


def high(row: Row) -> bool:
    return row[1] >= 5


# --- What we do --------------------------------------------------------------------------------


def rewrite_of(
    name: str, first: int, count: int, per_output: int, *, tries: int = 0, **more: Any
) -> Operation:
    """A compaction or a segment rewrite of `count` files from the `first` on. `tries`: how often
    another writer may take the version that it is for."""

    def begin(world: World, _: object) -> object:
        paths = sorted(world.views[-1])[first : first + count]
        return start_rewrite(world, paths, per_output, **more)

    return Operation(
        name, (begin, *[cast(Step, decide_rewrite)] * tries, cast(Step, finish_rewrite))
    )


def append_and_compact(world: World, _: object) -> object:
    """Rows that came after the start of every operation end up in one file with older ones."""
    append(3, 10)(world, None)
    return finish_rewrite(world, start_rewrite(world, sorted(world.views[-1]), 99))


def two_generations(world: World, _: object) -> object:
    """A bin-pack of the first two files, and a z-order of everything with splits behind it."""
    finish_rewrite(world, start_rewrite(world, sorted(world.views[-1])[:2], 99))
    return finish_rewrite(world, start_rewrite(world, sorted(world.views[-1]), 3, layout=z_order))


def statement_of_ours(statement: Statement, rounds: int = 0) -> Operation:
    def begin(world: World, _: object) -> object:
        return start_statement(world, statement)

    def one_round(world: World, running: object) -> object:
        assert isinstance(running, Running)
        if running.is_done:
            return running
        outcome = step_statement(world, running)
        if isinstance(outcome, ReadyToCommit):
            return carry_statement(world, running, outcome)
        return running if outcome is None else outcome

    name = statement.name + (" in rounds" if rounds else "")
    return Operation(name, (begin, *[one_round] * rounds, cast(Step, finish_statement)))


def replace_of(asked: Replace, *, tries: int = 0) -> Operation:
    def begin(world: World, _: object) -> object:
        return start_replace(world, asked)

    name = asked.name + (", put lost" if tries else "")
    steps = (begin, *[cast(Step, step_replace)] * tries, cast(Step, finish_replace))
    return Operation(name, steps)


def one(name: str, step: Step) -> Operation:
    return Operation(name, (step,))


THEIRS: Sequence[Operation] = (
    one("append", append(3, 8)),
    one("append one", append(5)),
    one("insert-only merge", foreign_insert_only_merge),
    one("foreign delete (vectors)", foreign(FOREIGN_DELETE, vectors=True)),
    one("foreign delete (copies)", foreign(FOREIGN_DELETE, vectors=False)),
    one("foreign update (vectors)", foreign(FOREIGN_UPDATE, vectors=True)),
    one("foreign update (copies)", foreign(FOREIGN_UPDATE, vectors=False)),
    one("foreign merge (vectors)", foreign(FOREIGN_MERGE, vectors=True, inserts=(3, 7))),
    one("foreign merge (copies)", foreign(FOREIGN_MERGE, vectors=False, inserts=(3, 7))),
    one("foreign delete of all", foreign(FOREIGN_DELETE_ALL, vectors=True)),
    one("foreign optimize", foreign_optimize(99)),
    one("foreign optimize of two", foreign_optimize(2)),
    one("foreign purge", purge),
    one("restore the first version", restore(None)),
    one("restore the version before", restore(1)),
    one("restore two versions back", restore(2)),
    one("overwrite", overwrite),
    one("replaceWhere", replace_where),
    one("a commit without rows", nothing_of_note),
    one("deletion vectors switched", switch_vectors),
    one("log clean-up", clean_log),
    one("log clean-up, old versions unreadable", clean_versions),
    one("row maps lost", lose_row_maps),
)

OURS: Sequence[Operation] = (
    rewrite_of("compaction of all", 0, 99, 99),
    rewrite_of("compaction of all, put lost", 0, 99, 99, tries=1),
    rewrite_of("compaction of two", 0, 2, 99),
    rewrite_of("compaction of the last two into small files", 1, 99, 2),
    rewrite_of("compaction that copies deleted rows", 0, 99, 99, copies=True, tries=1),
    rewrite_of("compaction of all, edits in two files", 0, 99, 99, splits=True, tries=1),
    rewrite_of("sort of all", 0, 99, 99, layout=by_value),
    rewrite_of("sort of two into small files", 0, 2, 2, layout=by_value),
    rewrite_of("z-order of all into small files", 0, 99, 2, layout=z_order),
    rewrite_of("rewrite of one segment", 1, 1, 99),
    rewrite_of("sort of each segment", 0, 99, 99, layout=by_value, each=True),
    one("append, and compaction of old and new rows", append_and_compact),
    one("bin-pack, and a z-order behind it", two_generations),
    statement_of_ours(UPDATE),
    statement_of_ours(UPDATE, rounds=1),
    statement_of_ours(DELETE),
    statement_of_ours(DELETE, rounds=1),
    statement_of_ours(DELETE_ALL),
    statement_of_ours(SERIALIZABLE_UPDATE),
    statement_of_ours(SERIALIZABLE_DELETE),
    statement_of_ours(RANDOM_UPDATE),
    statement_of_ours(UPSERT, rounds=1),
    statement_of_ours(UNRECORDED),
    statement_of_ours(KEEPING_MERGE, rounds=1),
    statement_of_ours(MIXED_MERGE, rounds=1),
    statement_of_ours(MIXED_WITHOUT_INSERTS, rounds=1),
    statement_of_ours(INSERT_ONLY),
    statement_of_ours(SERIALIZABLE_MERGE),
    statement_of_ours(SMALL_UPSERT, rounds=1),
    statement_of_ours(SMALL_KEEPING_MERGE, rounds=1),
    statement_of_ours(SMALL_INSERT_ONLY, rounds=1),
    statement_of_ours(SMALL_SERIALIZABLE_MERGE),
)

REPLACES: Sequence[Operation] = (
    replace_of(AT_START),
    replace_of(AT_START, tries=1),
    replace_of(AT_COMMIT),
    replace_of(DROP_AT_START),
    replace_of(DROP_AT_COMMIT),
    replace_of(FROM_AN_EARLIER_VERSION),
    replace_of(REPAIR),
    replace_of(EVERYTHING),
)

CUTS: Sequence[Operation] = (
    rewrite_of("cut of all", 0, 99, 99, takes=low),
    rewrite_of("cut of all, put lost", 0, 99, 99, takes=high, tries=1),
    rewrite_of("cut of two into small files", 0, 2, 2, takes=high),
    rewrite_of("cut of the last two in reverse", 1, 99, 2, takes=low, layout=by_value),
)

ALPHABET: tuple[Operation, ...] = (*THEIRS, *OURS, *REPLACES, *CUTS)
