"""Brute force: every interleaving of a few operations, checked against serial executions.

    PYTHONPATH=operator:tests python -m reconcile.search 100000 [seed]

Pairs of operations are searched completely, then triples in a shuffled order until the given
number of histories. Interleavings of one choice of operations share their beginnings, which
is what makes a hundred thousand of them affordable.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

from pyroaring import BitMap64

from reconcile.world import (
    Entry,
    Row,
    Rows,
    Rules,
    Running,
    Serial,
    Statement,
    World,
    finish_rewrite,
    finish_statement,
    initial,
    problem,
    start_rewrite,
    start_statement,
    step_statement,
    try_rewrite,
)
from tandem.errors import TandemError
from tandem.reconcile.model import ChangeKind
from tandem.reconcile.rules import Isolation
from tandem.reconcile.statement import Commit

# A step of an operation: changes the world, and returns what the next step needs.
Step = Callable[[World, object], object]


@dataclass(frozen=True)
class Operation:
    name: str
    steps: tuple[Step, ...]


# --- Statements: odd and even, so that each makes rows that the others match ------------------

UPDATE = Statement("update odd", lambda x: x % 2 == 1, lambda x, _: 2 * x + 1)
DELETE = Statement("delete thirds", lambda x: x % 3 == 0)
SERIALIZABLE_UPDATE = Statement(
    "serializable update", UPDATE.matches, UPDATE.change, Isolation.SERIALIZABLE
)
SERIALIZABLE_DELETE = Statement("serializable delete", DELETE.matches, None, Isolation.SERIALIZABLE)
RANDOM_UPDATE = Statement(
    "random update", UPDATE.matches, lambda x, token: x + 1000 * token, deterministic=False
)
FOREIGN_DELETE = Statement("foreign delete", lambda x: x % 5 in (0, 3))
FOREIGN_UPDATE = Statement("foreign update", lambda x: x % 2 == 0, lambda x, _: 3 * x + 3)


# --- What others do, in one step ---------------------------------------------------------------


def append(*values: int) -> Step:
    def step(world: World, _: object) -> object:
        rows: list[Row] = []
        for x in values:
            rows.append((world.next_id, x))
            world.next_id += 1
        path = world.write(rows)
        world.commit(
            Entry(
                ChangeKind.BLIND_APPEND,
                frozenset([path]),
                Serial("append", lambda before: [*before, *rows], append=True),
            ),
            {**world.views[-1], path: BitMap64()},
        )
        return None

    return step


def insert_only_merge(world: World, _: object) -> object:
    """Insert a row with x = 7 unless there is one: the same actions as an append, or none."""
    row = (world.next_id, 7)
    world.next_id += 1

    def effect(before: Rows) -> Rows:
        return before if any(x == 7 for _, x in before) else [*before, row]

    view = dict(world.views[-1])
    files: frozenset[str] = frozenset()
    if len(effect(world.rows_at(world.latest))) > sum(1 for _ in world.rows_at(world.latest)):
        path = world.write([row])
        view[path] = BitMap64()
        files = frozenset([path])
    world.commit(Entry(ChangeKind.CHANGE, files, Serial("merge", effect)), view)
    return None


def foreign(statement: Statement, *, vectors: bool) -> Step:
    """Another engine's update or delete, with deletion vectors or by copying files."""

    def step(world: World, _: object) -> object:
        view: dict[str, BitMap64] = {}
        files: set[str] = set()
        updated: list[Row] = []
        for path, dead in world.views[-1].items():
            rows = world.files[path]
            hit = [p for p in world.live(path) if statement.matches(rows[p][1])]
            if not hit:
                view[path] = dead
                continue
            files.add(path)
            changed = statement.apply([rows[p] for p in hit], 0)
            left = [rows[p] for p in world.live(path) if p not in hit]
            if vectors:
                updated += changed
                now = dead | BitMap64(hit)
                if len(now) < len(rows):
                    view[path] = now
            elif changed or left:
                copied = world.write([*left, *changed])
                view[copied] = BitMap64()
                files.add(copied)
        if updated:
            path = world.write(updated)
            view[path] = BitMap64()
            files.add(path)
        world.commit(
            Entry(
                ChangeKind.CHANGE if files else ChangeKind.NEUTRAL,
                frozenset(files),
                Serial(
                    statement.name,
                    lambda rows: statement.apply(rows, 0),
                    # Matched nothing: it would not match fewer rows either.
                    passable_from=None if files else -1,
                ),
            ),
            view,
        )
        return None

    return step


def foreign_optimize(count: int) -> Step:
    """A compaction by somebody else: no row map."""

    def step(world: World, _: object) -> object:
        view = dict(world.views[-1])
        chosen = sorted(view)[:count]
        rows = [world.files[path][p] for path in chosen for p in world.live(path)]
        for path in chosen:
            del view[path]
        written = world.write(rows)
        if rows:
            view[written] = BitMap64()
        world.commit(
            Entry(
                ChangeKind.CHANGE,
                frozenset([*chosen, written]),
                Serial("optimize", lambda before: before),
            ),
            view,
        )
        return None

    return step


def restore(back: int | None) -> Step:
    """To `back` versions before the latest, or to the first one."""

    def step(world: World, _: object) -> object:
        version = 0 if back is None else max(0, world.latest - back)
        target, now = world.views[version], world.views[-1]
        rows = world.rows_at(version)
        files = frozenset(p for p in {*target, *now} if target.get(p) != now.get(p))
        world.commit(
            Entry(ChangeKind.CHANGE, files, Serial("restore", lambda _: list(rows))), dict(target)
        )
        return None

    return step


def overwrite(world: World, _: object) -> object:
    rows = [(world.next_id, 3), (world.next_id + 1, 4)]
    world.next_id += 2
    path = world.write(rows)
    files = frozenset([path, *world.views[-1]])
    serial = Serial("overwrite", lambda _: list(rows))
    world.commit(Entry(ChangeKind.CHANGE, files, serial), {path: BitMap64()})
    return None


def clean_log(world: World, _: object) -> object:
    """What was committed so far can no longer be told; only the versions' files can."""
    world.first_in_log = world.latest + 1
    return None


def clean_versions(world: World, _: object) -> object:
    """Not even older versions can be read."""
    world.first_in_log = world.latest + 1
    world.lost = world.lost | frozenset(range(world.latest))
    return None


def lose_row_maps(world: World, _: object) -> object:
    world.maps = {}
    return None


# --- What we do --------------------------------------------------------------------------------


def compaction(name: str, first: int, count: int, per_output: int, tries: int = 0) -> Operation:
    def begin(world: World, _: object) -> object:
        paths = sorted(world.views[-1])[first : first + count]
        return start_rewrite(world, paths, per_output)

    def attempt(world: World, job: object) -> object:
        try_rewrite(world, job)  # type: ignore[arg-type]
        return job  # the put was lost: somebody else had that version

    def end(world: World, job: object) -> object:
        return finish_rewrite(world, job)  # type: ignore[arg-type]

    return Operation(name, (begin, *[attempt] * tries, end))


def append_and_compact(world: World, _: object) -> object:
    """Rows that came after everybody's start end up in one file with older ones."""
    append(3, 10)(world, None)
    return finish_rewrite(world, start_rewrite(world, sorted(world.views[-1]), 99))


def statement_of_ours(statement: Statement, rounds: int = 0) -> Operation:
    def begin(world: World, _: object) -> object:
        return start_statement(world, statement)

    def one_round(world: World, running: object) -> object:
        assert isinstance(running, Running)
        outcome = step_statement(world, running)
        return running if isinstance(outcome, Commit) or outcome is None else outcome

    def end(world: World, running: object) -> object:
        assert isinstance(running, Running)
        return finish_statement(world, running)

    name = statement.name + (" in rounds" if rounds else "")
    return Operation(name, (begin, *[one_round] * rounds, end))


ALPHABET: tuple[Operation, ...] = (
    Operation("append", (append(3, 8),)),
    Operation("append one", (append(5),)),
    Operation("insert-only merge", (insert_only_merge,)),
    Operation("foreign delete (vectors)", (foreign(FOREIGN_DELETE, vectors=True),)),
    Operation("foreign delete (copies)", (foreign(FOREIGN_DELETE, vectors=False),)),
    Operation("foreign update (vectors)", (foreign(FOREIGN_UPDATE, vectors=True),)),
    Operation("foreign update (copies)", (foreign(FOREIGN_UPDATE, vectors=False),)),
    Operation("foreign optimize", (foreign_optimize(99),)),
    Operation("foreign optimize of two", (foreign_optimize(2),)),
    Operation("restore the first version", (restore(None),)),
    Operation("restore the version before", (restore(1),)),
    Operation("restore two versions back", (restore(2),)),
    Operation("overwrite", (overwrite,)),
    Operation("log clean-up", (clean_log,)),
    Operation("log clean-up, old versions unreadable", (clean_versions,)),
    Operation("row maps lost", (lose_row_maps,)),
    compaction("compaction of all", 0, 99, 99),
    compaction("compaction of all, put lost", 0, 99, 99, tries=1),
    compaction("compaction of two", 0, 2, 99),
    compaction("compaction of the last two into small files", 1, 99, 2),
    Operation("append, and compaction of old and new rows", (append_and_compact,)),
    statement_of_ours(UPDATE),
    statement_of_ours(UPDATE, rounds=1),
    statement_of_ours(DELETE),
    statement_of_ours(DELETE, rounds=1),
    statement_of_ours(SERIALIZABLE_UPDATE),
    statement_of_ours(SERIALIZABLE_DELETE),
    statement_of_ours(RANDOM_UPDATE),
)


# --- The search --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Failure:
    history: tuple[str, ...]
    what: str
    refused: bool = False  # by our own counts; else the table has wrong rows

    def __str__(self) -> str:
        return "\n".join([*(f"  {line}" for line in self.history), f"  => {self.what}"])


@dataclass
class Report:
    histories: int = 0
    failures: int = 0
    wrong: int = 0  # of the failures, those that were published
    first: Failure | None = None
    seconds: float = 0.0

    def add(self, failure: Failure) -> None:
        self.failures += 1
        self.wrong += not failure.refused
        # The shortest one is the one to read.
        if self.first is None or len(failure.history) < len(self.first.history):
            self.first = failure


def interleavings(operations: Sequence[Operation], rules: Rules) -> Iterator[Failure | None]:
    """Run every order of the steps of these operations; one result for each."""

    def go(
        world: World, done: tuple[int, ...], memory: tuple[object, ...], told: tuple[str, ...]
    ) -> Iterator[Failure | None]:
        ended = True
        for index, operation in enumerate(operations):
            if done[index] == len(operation.steps):
                continue
            # Of two equal operations the first goes first.
            if index and operation is operations[index - 1] and done[index] >= done[index - 1]:
                continue
            ended = False
            after = world.copy()
            line = f"{operation.name}, step {done[index] + 1} of {len(operation.steps)}"
            try:
                result = operation.steps[done[index]](after, memory[index])
            except TandemError as error:
                yield Failure((*told, line), f"refused: {error}", refused=True)
                continue
            yield from go(
                after,
                (*done[:index], done[index] + 1, *done[index + 1 :]),
                (*memory[:index], result, *memory[index + 1 :]),
                (*told, line),
            )
        if ended:
            what = problem(world)
            yield Failure(told, what) if what else None

    none = tuple([0] * len(operations))
    yield from go(initial(rules), none, tuple([None] * len(operations)), ())


def choices(seed: int) -> Iterator[tuple[Operation, ...]]:
    """All pairs, then all triples in a shuffled order."""
    yield from combinations_with_replacement(ALPHABET, 2)
    triples = list(combinations_with_replacement(ALPHABET, 3))
    random.Random(seed).shuffle(triples)
    yield from triples


def search(
    size: int, *, seed: int = 0, rules: Rules | None = None, stop_when_wrong: bool = False
) -> Report:
    """Run at least `size` histories, or all there are."""
    report = Report()
    begin = time.perf_counter()
    for operations in choices(seed):
        for failure in interleavings(operations, rules or Rules()):
            report.histories += 1
            if failure is not None:
                report.add(failure)
        if report.histories >= size or (stop_when_wrong and report.wrong):
            break
    report.seconds = time.perf_counter() - begin
    return report


def search_at_random(
    size: int, *, seed: int = 0, rules: Rules | None = None, operations: int = 6
) -> Report:
    """Longer histories, each with its own choice and order."""
    report = Report()
    begin = time.perf_counter()
    rng = random.Random(seed)
    for _ in range(size):
        chosen = [rng.choice(ALPHABET) for _ in range(rng.randint(4, operations))]
        report.histories += 1
        failure = run_one(chosen, rng, rules or Rules())
        if failure is not None:
            report.add(failure)
    report.seconds = time.perf_counter() - begin
    return report


def run_one(operations: Sequence[Operation], rng: random.Random, rules: Rules) -> Failure | None:
    """One random order of the steps of these operations, checked after every step."""
    world = initial(rules)
    done = [0] * len(operations)
    memory: list[object] = [None] * len(operations)
    told: list[str] = []
    while True:
        waiting = [i for i, op in enumerate(operations) if done[i] < len(op.steps)]
        if not waiting:
            return None
        index = rng.choice(waiting)
        operation = operations[index]
        told.append(f"{operation.name}, step {done[index] + 1} of {len(operation.steps)}")
        before = world.latest
        try:
            memory[index] = operation.steps[done[index]](world, memory[index])
        except TandemError as error:
            return Failure(tuple(told), f"refused: {error}", refused=True)
        done[index] += 1
        what = problem(world) if world.latest > before else ""
        if what:
            return Failure(tuple(told), what)


def main(arguments: Sequence[str]) -> int:
    size = int(arguments[0]) if arguments else 100_000
    report = search(size, seed=int(arguments[1]) if len(arguments) > 1 else 0)
    sys.stdout.write(
        f"{report.histories:,} histories in {report.seconds:.1f} s, {report.failures} failures\n"
    )
    if report.first is not None:
        sys.stdout.write(f"{report.first}\n")
    return 1 if report.failures else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
