"""What the rows of a table must be after a storm, by its log and nothing else: every commit is
taken in its order, and done in plain Python to rows in a dict.

Rows that were appended while an update of ours ran may have been updated or not: an append may
be put after it (write serializability). So `u`, which only our updates count up, is a range.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tandem.delta.actions import Commit


@dataclass
class Expected:
    v: int
    born: int
    """Version of the commit that brought the row."""
    blind: bool
    """By an append."""
    least: int = 0
    most: int = 0


@dataclass(frozen=True)
class OurUpdate:
    """`UPDATE SET u = u + 1 WHERE k = k`, read at `read` and committed as `version`."""

    k: int
    read: int
    version: int


@dataclass
class StormModel:
    """`tries` are the foreign ones by tag; `updates` ours by version."""

    tries: Mapping[str, Mapping[str, Any]]
    updates: Mapping[int, OurUpdate]
    rows: dict[int, Expected] = field(default_factory=dict)
    committed: set[str] = field(default_factory=set)

    def replay(self, commits: Iterable[Commit]) -> None:
        for commit in commits:
            tag = "" if commit.info is None else commit.info.body.get("storm", "")
            if tag:
                self.committed.add(tag)
                self._foreign(self.tries[tag], commit.version)
            elif commit.version in self.updates:
                self._ours(self.updates[commit.version])

    def _foreign(self, action: Mapping[str, Any], version: int) -> None:
        match action["kind"]:
            case "append":
                for n in action["ids"]:
                    self.rows[n] = Expected(0, version, blind=True)
            case "update":
                for n in range(action["first"], action["end"]):
                    if n in self.rows:
                        self.rows[n].v += 1
            case "delete":
                self.rows.pop(action["ids"][0], None)
            case _:
                for n in action["ids"]:
                    if n in self.rows:
                        self.rows[n].v = action["value"]
                    else:
                        self.rows[n] = Expected(action["value"], version, blind=False)

    def _ours(self, update: OurUpdate) -> None:
        for n, row in self.rows.items():
            if n % 5 == update.k:
                row.most += 1
                row.least += not (row.blind and row.born > update.read)

    def faults(self, found: Iterable[Mapping[str, int]]) -> list[str]:
        """Rows lost, doubled, resurrected, or with values that no statement gave them."""
        seen: dict[int, Mapping[str, int]] = {}
        faults: list[str] = []
        for row in found:
            if row["id"] in seen:
                faults.append(f"doubled: {row}")
            seen[row["id"]] = row
        faults += [f"lost: {n}" for n in self.rows if n not in seen]
        for n, row in seen.items():
            expected = self.rows.get(n)
            if expected is None:
                faults.append(f"resurrected: {row}")
            elif row["v"] != expected.v or not expected.least <= row["u"] <= expected.most:
                faults.append(f"wrong: {row}, expected {expected}")
        return faults
