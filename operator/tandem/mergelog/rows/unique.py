"""Reduces rows that are sorted by key to one row a key. Pure.

The row with the greatest value of the ordering column wins. Where that value occurs twice, or
there is no ordering column, nothing says which row wins: such keys are counted, and some shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tandem.distinct import IntArray
from tandem.mergelog.rows.duplicates import EXAMPLES, greatest_rows, key_texts
from tandem.mergelog.rows.records import number_keys, rank
from tandem.mergelog.state.log_table import LogSettings


@dataclass(slots=True)
class Repeated:
    """The number of keys that occurred more than once, and the first few of them as text."""

    keys: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, other: Repeated) -> None:
        self.keys += other.keys
        self.examples = [*self.examples, *other.examples][:EXAMPLES]


class UniqueRows:
    """Takes the rows in parts. The rows of the last key of a part are kept, since the next part
    may have more of them: two are enough, the greatest ones.

    Args:
        alike: whether rows have no other columns than those that decide: then it does not matter
            which of several equal ones wins.
    """

    def __init__(self, settings: LogSettings, *, alike: bool = False) -> None:
        self._settings = settings
        self._alike = alike
        self._held: pa.Table | None = None
        self.repeated = Repeated()

    def take(self, rows: pa.Table) -> pa.Table | None:
        """The rows of the keys that are complete."""
        if self._held is not None:
            rows = pa.concat_tables([self._held, rows])
        if not rows.num_rows:
            return None
        rows = rows.combine_chunks()
        keys, ranks = self._numbers(rows)
        start = int(np.argmax(keys == keys[-1]))
        greatest = np.argsort(ranks[start:], kind="stable")[-2:] + start
        self._held = rows.take(pa.array(greatest))
        return self._reduced(rows.slice(0, start), keys[:start], ranks[:start])

    def finish(self) -> pa.Table | None:
        """The row of the last key."""
        if self._held is None:
            return None
        held, self._held = self._held.combine_chunks(), None
        return self._reduced(held, *self._numbers(held))

    def _numbers(self, rows: pa.Table) -> tuple[IntArray, IntArray]:
        """The number of each row's key, and the rank of its value of the ordering column."""
        settings = self._settings
        keys = number_keys([rows[key].combine_chunks() for key in settings.keys])
        if not settings.ordered:
            return keys, np.zeros(len(keys), np.int64)
        return keys, rank(rows[settings.ordering_column].combine_chunks())

    def _reduced(self, rows: pa.Table, keys: IntArray, ranks: IntArray) -> pa.Table:
        greatest = greatest_rows(keys, ranks)
        if not self._alike:
            shown = rows.take(pa.array(greatest.tied[: EXAMPLES - len(self.repeated.examples)]))
            keys_shown = [shown[key].combine_chunks() for key in self._settings.keys]
            examples = key_texts(keys_shown, self._settings)
            self.repeated.add(Repeated(len(greatest.tied), examples))
        return rows.take(pa.array(greatest.rows))
