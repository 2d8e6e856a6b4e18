"""How inputs are shared out among Spark's tasks: small ones together, large ones in parts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pyspark.sql.datasource import InputPartition


@dataclass(frozen=True)
class Stripe:
    """Part `part` of `parts` of an input."""

    input: int
    part: int = 0
    parts: int = 1

    def of(self, count: int) -> range:
        """This part of `count` things (row groups, bytes); the parts adjoin."""
        return range(count * self.part // self.parts, count * (self.part + 1) // self.parts)


class Stripes(InputPartition):
    """What one task reads, in this order; `number` counts the tasks."""

    def __init__(self, number: int, stripes: tuple[Stripe, ...]) -> None:
        super().__init__(number)
        self.number = number
        self.stripes = stripes


def stripes(sizes: Sequence[int], target: int, whole: Collection[int] = ()) -> list[Stripes]:
    """Tasks of about `target` bytes each, in the inputs' order.

    Args:
        sizes: of the inputs, in bytes.
        whole: indexes of those that cannot be cut.
    """
    found: list[tuple[Stripe, ...]] = []
    together: list[Stripe] = []
    filled = 0
    for index, size in enumerate(sizes):
        parts = 1 if index in whole else max(1, round(size / target))
        if parts > 1:
            found += [(Stripe(index, part, parts),) for part in range(parts)]
            continue
        together.append(Stripe(index))
        filled += size
        if filled >= target:
            found.append(tuple(together))
            together, filled = [], 0
    if together:
        found.append(tuple(together))
    return [Stripes(number, shares) for number, shares in enumerate(found)]
