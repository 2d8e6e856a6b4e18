"""The statements that histories use, each as SQL and as what it means in Python."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simulator.rows import Row


@dataclass(frozen=True)
class Statement:
    """`new` None deletes; else it gives the new value of `v`."""

    where: str
    matches: Callable[[Row], bool]
    set_v: str = ""
    new: Callable[[Row], int] | None = None

    def apply(self, row: Row) -> Row | None:
        """What becomes of a row."""
        if not self.matches(row):
            return row
        return None if self.new is None else row._replace(v=self.new(row))

    def __str__(self) -> str:
        verb = f"UPDATE v = {self.set_v}" if self.set_v else "DELETE"
        return f"{verb} WHERE {self.where}"


UPDATES = (
    Statement("k = 1", lambda r: r.k == 1, "v + 15", lambda r: r.v + 15),
    # Rows that it changes may match it again (C2c): doing it twice shows.
    Statement("v < 40", lambda r: r.v < 40, "v + 7", lambda r: r.v + 7),
    Statement("k >= 2", lambda r: r.k >= 2, "k + 1", lambda r: r.k + 1),
    Statement("k = 9", lambda r: r.k == 9, "0", lambda _: 0),  # matches nothing
)

DELETES = (
    Statement("k = 2", lambda r: r.k == 2),
    Statement("v > 60", lambda r: r.v > 60),
    Statement("k = 9", lambda r: r.k == 9),
    Statement("v >= 0", lambda r: r.v >= 0),  # everything
)

BY_SQL = {(s.where, s.set_v): s for s in (*UPDATES, *DELETES)}
