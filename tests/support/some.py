"""Cases of which `make test` takes a part, and `make matrix` all."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import pytest

T = TypeVar("T")
EVERY_CASE = "TANDEM_EVERY_CASE"
_TIMES = 8


def every_case() -> bool:
    """Whether all cases are wanted."""
    return bool(os.environ.get(EVERY_CASE))


def is_whole(node: pytest.Item) -> bool:
    """Whether Spark does the jobs of a test: if it is marked so, or with `TANDEM_EVERY_CASE`.
    What is around a job is tested without Spark, in a twentieth of the time
    (`support.jobs.quick_jobs`)."""
    return every_case() or node.get_closest_marker("whole") is not None


def some(cases: Sequence[T], every: int = 3) -> list[T]:
    """The first of each `every` cases; all of them if the environment has `TANDEM_EVERY_CASE`."""
    return list(cases) if every_case() else list(cases[::every])


def in_turn(cases: Sequence[T], number: int, every: int = 2) -> list[T]:
    """The cases whose turn it is in the test of that number: each test has a part of them, and
    several tests have all; each has all with `TANDEM_EVERY_CASE`."""
    return list(cases) if every_case() else list(cases[number % every :: every])


def few(count: int, most: int) -> int:
    """A number of generated cases: `count`; with `TANDEM_EVERY_CASE` eight times as many, at most
    `most` (decision 0157). Each run generates others."""
    return min(_TIMES * count, most) if every_case() else count


def left_to_matrix(items: Iterable[pytest.Item]) -> set[pytest.Item]:
    """The tests marked `matrix`, and of each test marked `part(every)` all but one of each `every`
    cases in a row: of the first ones the first, of the next ones the second, and so on. Of a
    grid of values, that is not always the same column."""
    left: set[pytest.Item] = set()
    cases: Counter[tuple[object, str]] = Counter()
    for item in items:
        part = item.get_closest_marker("part")
        chosen = item.get_closest_marker("matrix") is None
        if part is not None:
            test = item.parent, getattr(item, "originalname", item.name)
            row, column = divmod(cases[test], part.args[0])
            chosen = chosen and column == row % part.args[0]
            cases[test] += 1
        if not chosen:
            left.add(item)
    return left
