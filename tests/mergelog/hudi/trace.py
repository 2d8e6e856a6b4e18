"""Traces of upserts, deletes and late and equal orderings, for Tandem and Apache Hudi.

`SAME` are traces of what both define alike, above all random ones, from seeds; `DIFFERENCES` are
the shortest traces of what they do not. Knows neither of the two.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Final, Literal

Record = tuple[int, int | None, str | None]
"""Key, value of the ordering column, value: None deletes."""
Batch = tuple[Record, ...]
Service = Literal["stitch", "merge"]
"""`stitch`: log compaction. `merge`: LogMerge, full compaction in Hudi."""
Step = Batch | Service

SEEDS: Final = range(4)
KEYS: Final = 12
"""Of a seed; the next one has others, and the same steps."""
NEWEST: Final = 6
"""Orderings are so few that equal ones are common."""
STEPS: Final[tuple[Literal["append"] | Service, ...]] = (
    *("append", "append", "append", "stitch", "append", "merge"),
    *("append", "append", "stitch", "append", "merge", "append"),
)


@dataclass(frozen=True)
class Trace:
    """`base`: rows of the table before its log. Without `ordered` the later record wins.
    `by_operation`: in Hudi, batches are of its operation `delete`, which takes keys."""

    name: str
    ordered: bool
    base: Batch
    steps: tuple[Step, ...]
    by_operation: bool = False

    def to_json(self) -> dict[str, Any]:
        steps = [step if isinstance(step, str) else list(map(list, step)) for step in self.steps]
        return {
            "name": self.name,
            "ordered": self.ordered,
            "by_operation": self.by_operation,
            "base": list(map(list, self.base)),
            "steps": steps,
        }


def generated(seed: int, *, ordered: bool) -> tuple[Batch, tuple[Step, ...]]:
    """The rows of the table, and steps without the differences: a delete is of a key that the table
    has, and no event is older than a merged delete of its key."""
    chance = random.Random(f"{seed} {ordered}")
    keys = range(seed * KEYS, (seed + 1) * KEYS)
    base = tuple((key, chance.randrange(NEWEST), f"base {key}") for key in keys[: KEYS // 2])
    winners: dict[int, tuple[int, str | None]] = {key: (at, value) for key, at, value in base}
    least = dict.fromkeys(keys, 0)
    steps: list[Step] = []
    for number, kind in enumerate(STEPS):
        if kind == "append":
            steps.append(_batch(chance, number, winners, least, ordered=ordered))
            continue
        steps.append(kind)
        if kind == "merge":
            for key in [key for key, (_, value) in winners.items() if value is None]:
                at, _ = winners.pop(key)
                least[key] = at if ordered else 0
    return base, tuple(steps)


def _batch(
    chance: random.Random,
    step: int,
    winners: dict[int, tuple[int, str | None]],
    least: dict[int, int],
    *,
    ordered: bool,
) -> Batch:
    """Five keys; with an ordering one of them twice. Updates `winners`.

    Args:
        least: for each key the least ordering that may come.
    """
    found: dict[tuple[int, int], str | None] = {}
    chosen = chance.sample(sorted(least), k=5)
    if ordered:
        chosen += [key for key in chosen if key in winners][:1]
    known = frozenset(winners)
    for number, key in enumerate(chosen):
        at = chance.randrange(least[key], NEWEST)
        if (key, at) in found:
            continue  # twice in a batch with one ordering
        value = None if key in known and chance.random() < 0.4 else f"{step}.{number}"
        found[key, at] = value
        if not ordered or key not in winners or at >= winners[key][0]:
            winners[key] = (at, value)
    return tuple((key, at, value) for (key, at), value in found.items())


def combined(*, ordered: bool) -> Trace:
    """The traces of all seeds in one table, since each commit of Hudi takes a second."""
    base: list[Record] = []
    steps: list[Step] = []
    parts = [generated(seed, ordered=ordered) for seed in SEEDS]
    for rows, _ in parts:
        base += rows
    for at, kind in enumerate(STEPS):
        batches = [step for _, found in parts if not isinstance(step := found[at], str)]
        if kind == "append":
            steps.append(tuple(record for batch in batches for record in batch))
        else:
            steps.append(kind)
    name = "with-ordering" if ordered else "without-ordering"
    return Trace(name, ordered, tuple(base), tuple(steps))


_BASE: Final[Batch] = ((1, 5, "base"), (2, 5, "other"))

SAME: Final = (
    combined(ordered=False),
    combined(ordered=True),
    Trace("one-key-twice-in-one-batch", False, _BASE, (
        ((1, 9, "first"), (1, 7, "second")), ((2, 7, "first"), (2, 9, "second")),
    )),
    Trace("upserts-of-one-ordering-in-one-batch", True, _BASE, (
        ((1, 7, "b"), (1, 7, "a")), ((2, 7, "a"), (2, 7, "b")),
    )),
)  # fmt: skip

DIFFERENCES: Final = (
    Trace("delete-by-operation", True, _BASE, (((1, 3, None),),), by_operation=True),
    Trace("event-older-than-a-merged-delete", True, _BASE, (
        ((1, 9, None),), "merge", ((1, 7, "late"),),
    )),
    Trace("event-older-than-a-delete-of-an-absent-key", True, _BASE, (
        ((3, 9, None),), ((3, 7, "late"),),
    )),
    Trace("delete-without-ordering", True, _BASE, (((1, None, None),),)),
    Trace("upsert-without-ordering", True, _BASE, (((1, None, "least"),),)),
    Trace("delete-and-upsert-of-one-ordering-in-one-batch", True, _BASE, (
        ((1, 7, None), (1, 7, "upsert")), ((2, 7, "upsert"), (2, 7, None)),
    )),
)  # fmt: skip
