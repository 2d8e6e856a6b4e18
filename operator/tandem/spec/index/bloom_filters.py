"""Which columns of new data files get bloom filters."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from tandem.spec.fields import Model, StrictFloat, Text
from tandem.spec.rules import cel


@cel(
    "self.all(name, self.exists_one(other, other.lowerAscii() == name.lowerAscii()))",
    "must name each column once, ignoring case",
)
def _once(value: tuple[str, ...]) -> tuple[str, ...]:
    if len({name.lower() for name in value}) < len(value):
        raise ValueError("must name each column once, ignoring case")
    return value


class BloomFilters(Model):
    columns: Annotated[tuple[Text, ...], Field(min_length=1, max_length=32), AfterValidator(_once)]
    """Columns that are compared with `=` or `IN`, and whose values lie in all row groups: keys.
    Neither floats nor nested, boolean or binary ones, nor those of partitions."""
    false_positives: Annotated[StrictFloat, Field(ge=0.0001, le=0.5)] = 0.01
    """False positive rate of a filter: at 0.01, one value takes about ten bits."""
