"""Brute force: every interleaving of a few operations, checked against serial executions.

    PYTHONPATH=operator:tests python -m reconcile.search --small 100000 --random 20000
    PYTHONPATH=operator:tests python -m reconcile.search --without-vectors 20000
    PYTHONPATH=operator:tests python -m reconcile.search --all --random 200000 --processes 2

Pairs of operations are searched completely, then triples in a shuffled order until the given
number of histories, or all of them. Interleavings of one choice of operations share their
beginnings, which is what makes a million of them affordable.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement, islice

from reconcile import without_vectors
from reconcile.alphabet import ALPHABET, Operation
from reconcile.world import World, initial, problem
from tandem.errors import TandemError

EVERYTHING = sys.maxsize

Stop = Callable[["Report"], object]
"""Whether what was found is enough."""


@dataclass(frozen=True)
class Failure:
    history: tuple[str, ...]
    what: str

    def __str__(self) -> str:
        return "\n".join([*(f"  {line}" for line in self.history), f"  => {self.what}"])


@dataclass
class Report:
    histories: int = 0
    failures: int = 0
    first: Failure | None = None
    seconds: float = 0.0

    def add(self, failure: Failure) -> None:
        self.failures += 1
        self._keep(failure)

    def merge(self, other: Report) -> None:
        """Take in what another process found at the same time."""
        self.histories += other.histories
        self.failures += other.failures
        self.seconds = max(self.seconds, other.seconds)
        self._keep(other.first)

    def _keep(self, failure: Failure | None) -> None:
        """The shortest one is the one to read."""
        if failure is None:
            return
        if self.first is None or len(failure.history) < len(self.first.history):
            self.first = failure


def never(_: Report) -> bool:
    return False


def failed(report: Report) -> bool:
    return report.failures > 0


def interleavings(operations: Sequence[Operation], world: World) -> Iterator[Failure | None]:
    """Run every order of the steps of these operations; one result for each."""

    def go(
        world: World, done: tuple[int, ...], memory: tuple[object, ...], trace: tuple[str, ...]
    ) -> Iterator[Failure | None]:
        is_done = True
        for index, operation in enumerate(operations):
            if done[index] == len(operation.steps):
                continue
            # Of two equal operations the first goes first.
            if index and operation is operations[index - 1] and done[index] >= done[index - 1]:
                continue
            is_done = False
            after = world.copy()
            line = f"{operation.name}, step {done[index] + 1} of {len(operation.steps)}"
            try:
                result = operation.steps[done[index]](after, memory[index])
            except TandemError as error:
                yield Failure((*trace, line), f"refused: {error}")
                continue
            yield from go(
                after,
                (*done[:index], done[index] + 1, *done[index + 1 :]),
                (*memory[:index], result, *memory[index + 1 :]),
                (*trace, line),
            )
        if is_done:
            yield ended(operations, world, memory, trace)

    none = tuple([0] * len(operations))
    yield from go(world, none, tuple([None] * len(operations)), ())


def ended(
    operations: Sequence[Operation],
    world: World,
    memory: Sequence[object],
    trace: Sequence[str],
) -> Failure | None:
    """What is wrong after all steps, and what is left to do then."""
    for operation, result in zip(operations, memory, strict=True):
        try:
            if operation.end is not None:
                operation.end(world, result)
        except TandemError as error:
            return Failure((*trace, operation.name), f"refused: {error}")
    what = problem(world)
    return Failure(tuple(trace), what) if what else None


def choices(seed: int) -> Iterator[tuple[Operation, ...]]:
    """All pairs, then all triples in a shuffled order."""
    yield from combinations_with_replacement(ALPHABET, 2)
    triples = list(combinations_with_replacement(ALPHABET, 3))
    random.Random(seed).shuffle(triples)
    yield from triples


def search(
    size: int,
    *,
    seed: int = 0,
    stop: Stop = never,
    part: tuple[int, int] = (0, 1),
) -> Report:
    """Run at least `size` histories, or all there are. `part` (n, of): every `of`-th choice of
    operations only, from the n-th on."""
    report = Report()
    begin = time.perf_counter()
    for operations in islice(choices(seed), part[0], None, part[1]):
        for failure in interleavings(operations, initial()):
            report.histories += 1
            if failure is not None:
                report.add(failure)
        if report.histories >= size or stop(report):
            break
    report.seconds = time.perf_counter() - begin
    return report


def search_without_vectors(
    size: int,
    *,
    seed: int = 0,
    stop: Stop = never,
    part: tuple[int, int] = (0, 1),
) -> Report:
    """Run `size` of the histories of `reconcile.without_vectors` at random, or all there are."""
    report = Report()
    begin = time.perf_counter()
    rng = random.Random(f"{seed} {part[0]}")
    if size >= EVERYTHING // part[1]:
        chosen = iter(without_vectors.choices()[part[0] :: part[1]])
    else:
        chosen = (without_vectors.some_choice(rng) for _ in range(size))
    for choice in chosen:
        world = choice.world()
        found: Iterable[Failure | None]
        if size >= EVERYTHING // part[1]:
            found = interleavings(choice.operations, world)
        else:
            found = (run_one(choice.operations, rng, world),)
        for failure in found:
            report.histories += 1
            if failure is not None:
                report.add(replace(failure, history=(choice.described, *failure.history)))
        if stop(report):
            break
    report.seconds = time.perf_counter() - begin
    return report


def search_at_random(
    size: int,
    *,
    seed: int = 0,
    operations: int = 6,
    stop: Stop = never,
) -> Report:
    """Longer histories, each with its own choice and order."""
    report = Report()
    begin = time.perf_counter()
    rng = random.Random(seed)
    for _ in range(size):
        chosen = [rng.choice(ALPHABET) for _ in range(rng.randint(4, operations))]
        report.histories += 1
        world = initial(vectors=rng.random() < 0.5)
        failure = run_one(chosen, rng, world)
        if failure is not None:
            vectors = "on" if world.vectors else "off"
            began = f"deletion vectors are {vectors}"
            report.add(replace(failure, history=(began, *failure.history)))
            if stop(report):
                break
    report.seconds = time.perf_counter() - begin
    return report


def run_one(operations: Sequence[Operation], rng: random.Random, world: World) -> Failure | None:
    """One random order of the steps of these operations, checked after every step."""
    done = [0] * len(operations)
    memory: list[object] = [None] * len(operations)
    trace: list[str] = []
    while True:
        waiting = [i for i, op in enumerate(operations) if done[i] < len(op.steps)]
        if not waiting:
            return ended(operations, world, memory, trace)
        index = rng.choice(waiting)
        operation = operations[index]
        trace.append(f"{operation.name}, step {done[index] + 1} of {len(operation.steps)}")
        before = world.latest
        try:
            memory[index] = operation.steps[done[index]](world, memory[index])
        except TandemError as error:
            return Failure(tuple(trace), f"refused: {error}")
        done[index] += 1
        what = problem(world) if world.latest > before else ""
        if what:
            return Failure(tuple(trace), what)


@dataclass(frozen=True)
class Asked:
    """How many histories of each kind, of all processes together. `first`: stop at a failure."""

    small: int
    without_vectors: int
    longer: int
    seed: int
    first: bool


def one_part(asked: Asked, number: int, of: int) -> list[Report]:
    """One process's part of the histories."""
    stop = failed if asked.first else never
    part = number, of
    reports = [Report(), Report(), Report()]
    if asked.small:
        reports[0] = search(asked.small // of, seed=asked.seed, part=part, stop=stop)
    if asked.without_vectors and not stop(reports[0]):
        size = asked.without_vectors // of
        reports[1] = search_without_vectors(size, seed=asked.seed, part=part, stop=stop)
    if asked.longer and not any(map(stop, reports)):
        seed = asked.seed * of + number
        reports[2] = search_at_random(asked.longer // of, seed=seed, stop=stop)
    return reports


def main() -> int:
    parser = argparse.ArgumentParser(prog="reconcile.search", description=__doc__)
    parser.add_argument("--small", type=int, default=0, help="of two and three operations")
    parser.add_argument("--without-vectors", type=int, default=0, help="in a table without vectors")
    parser.add_argument("--all", action="store_true", help="every one of these")
    parser.add_argument("--random", type=int, default=0, help="longer histories, at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--first", action="store_true", help="stop at the first failure")
    found = parser.parse_args()
    asked = Asked(
        EVERYTHING if found.all else found.small,
        EVERYTHING if found.all else found.without_vectors,
        found.random,
        found.seed,
        found.first,
    )
    reports = [Report(), Report(), Report()]
    with ProcessPoolExecutor(found.processes) as pool:
        jobs = [pool.submit(one_part, asked, n, found.processes) for n in range(found.processes)]
        for job in jobs:
            for report, part in zip(reports, job.result(), strict=True):
                report.merge(part)
    kinds = (
        f"of two and three of {len(ALPHABET)} operations",
        "without deletion vectors",
        f"of four to six of {len(ALPHABET)} operations",
    )
    for what, report in zip(kinds, reports, strict=True):
        sys.stdout.write(
            f"{report.histories:,} histories {what} in {report.seconds:.0f} s,"
            f" {report.failures} failures\n"
        )
        if report.first is not None:
            sys.stdout.write(f"{report.first}\n")
    return 1 if any(report.failures for report in reports) else 0


if __name__ == "__main__":
    raise SystemExit(main())
