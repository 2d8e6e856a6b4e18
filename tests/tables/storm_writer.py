"""One foreign writer of a storm: `python -m tables.storm_writer LOCATION NUMBER PAUSE_MS`.

By deltalake it appends, updates, deletes and merges rows of its own, until standard input ends,
and reports every try on standard output as a line of JSON. Each try carries a tag in its commit,
so that the log shows which were committed, whatever answer the writer received.
"""

from __future__ import annotations

import json
import random
import select
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, write_deltalake
from deltalake.exceptions import DeltaError

IDS = 1_000_000
"""Writer n owns the ids from n times this."""

Action = dict[str, Any]


@dataclass
class Writer:
    location: str
    number: int
    chance: random.Random
    live: list[int] = field(default_factory=list)
    made: int = 0
    tries: int = 0

    def new_ids(self, count: int) -> list[int]:
        first = self.number * IDS + self.made
        self.made += count
        return list(range(first, first + count))

    def next_action(self) -> Action:
        """What to do next; it is tried until it is committed."""
        kinds = ["append"] if len(self.live) < 10 else ["append", "update", "delete", "merge"]
        match self.chance.choice(kinds):
            case "append":
                return {"kind": "append", "ids": self.new_ids(5)}
            case "update":
                first = self.chance.choice(self.live)
                return {"kind": "update", "first": first, "end": first + 8}
            case "delete":
                return {"kind": "delete", "ids": [self.chance.choice(self.live)]}
            case _:
                known = sorted(self.chance.sample(self.live, 2))
                value = self.chance.randrange(1000)
                return {"kind": "merge", "ids": [*known, *self.new_ids(1)], "value": value}

    def try_once(self, action: Action) -> bool:
        """Open the table, act, report the outcome and how long the transaction ran."""
        self.tries += 1
        tag = f"{self.number}-{self.tries}"
        begun = time.monotonic()
        error = ""
        try:
            perform(DeltaTable(self.location), action, tag)
        except DeltaError as raised:
            error = f"{type(raised).__name__}: {raised}"
        ms = round((time.monotonic() - begun) * 1000)
        print(json.dumps({**action, "tag": tag, "ms": ms, "error": error}), flush=True)  # noqa: T201
        if not error:
            self.remember(action)
        return not error

    def remember(self, action: Action) -> None:
        if action["kind"] == "delete":
            self.live = [n for n in self.live if n not in action["ids"]]
        elif action["kind"] in ("append", "merge"):
            self.live += [n for n in action["ids"] if n not in self.live]


def perform(table: DeltaTable, action: Action, tag: str) -> None:
    """Raises: DeltaError where deltalake's own rules refuse it."""
    properties = CommitProperties(custom_metadata={"storm": tag})
    ids = action.get("ids", [])
    match action["kind"]:
        case "append":
            write_deltalake(table, _rows(ids, 0), mode="append", commit_properties=properties)
        case "update":
            where = f"id >= {action['first']} AND id < {action['end']}"
            table.update(updates={"v": "v + 1"}, predicate=where, commit_properties=properties)
        case "delete":
            table.delete(f"id = {ids[0]}", commit_properties=properties)
        case _:
            source = _rows(ids, action["value"])
            merger = table.merge(
                source, "t.id = s.id", source_alias="s", target_alias="t",
                commit_properties=properties,
            )  # fmt: skip
            merger.when_matched_update({"v": "s.v"}).when_not_matched_insert_all().execute()


def _rows(ids: list[int], value: int) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "k": pa.array([n % 5 for n in ids], pa.int64()),
            "v": pa.array([value] * len(ids), pa.int64()),
            "u": pa.array([0] * len(ids), pa.int64()),
        }
    )


def storm(location: str, number: int, pause_ms: int) -> None:
    """Act, wait, and so on; a writer that has no pause acts as fast as it can."""
    chance = random.Random(number)
    writer = Writer(location, number, chance)
    action = writer.next_action()
    while True:
        if writer.try_once(action):
            action = writer.next_action()
        pause = pause_ms / 1000 * chance.uniform(0.5, 1.5)
        if select.select([sys.stdin], [], [], pause)[0]:
            return


if __name__ == "__main__":
    storm(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
