"""R-11 and R-12 on histories at random: whatever our operations and other writers do beside each
other, each commit keeps the ids of the rows that were there, keeps the versions of those with the
same values, and gives new rows ids above the mark."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Mapping
from pathlib import Path

import pytest

from support.jobs.quick_lake import QuickLake
from support.lake.lake import reason
from support.lake.plain import Hits
from support.lake.rows import Rows
from support.lake.tracking import in_files
from support.some import few
from tables.test_compacted_row_ids import KINDS, quick
from tables.test_replaced_row_ids import FRESH, append, but, by_others
from tables.test_row_tracking import MARK
from tandem.operations.session.options import Interceptor, passthrough
from tandem.spec.resources import Operation
from tandem.spec.status import Phase

ENDS = (Phase.SUCCEEDED, Phase.SUPERSEDED)


class History:
    """A table, and what is done to it. Rows that are written have values that none had before."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.lake = quick(folder, vectors=self.rng.random() < 0.5)
        self.numbers = itertools.count(1_000)
        self.has_log = self.rng.random() < 0.5

    def rows(self, known: int, new: int) -> Rows:
        """Rows of some keys that the table has, and of others."""
        keys = self.rng.sample(self.keys, min(known, len(self.keys)))
        keys += [next(self.numbers) for _ in range(new)]
        return tuple((key, key % 5, next(self.numbers)) for key in keys)

    @property
    def keys(self) -> list[int]:
        return sorted(in_files(self.lake))

    # Operations of ours

    def compaction(self) -> Operation:
        return self.lake.compaction("Major", **KINDS[self.rng.choice([*KINDS])])

    def update(self) -> Operation:
        return self.lake.update(f"k = {self.rng.randrange(5)}", v="v + 10000")

    def delete(self) -> Operation:
        return self.lake.delete(f"id % 7 = {self.rng.randrange(7)}")

    def merge(self) -> Operation:
        return self.lake.merge(self.rows(4, 2))

    def log_merge(self) -> Operation:
        append(self.lake, self.rows(4, 2), self.rng.sample(self.keys, 1))
        return self.lake.compaction("LogMerge")

    def replace(self) -> Operation:
        source = self.lake.source(self.rows(0, 3)).as_uri()
        body = {
            "replace": {"segments": [self.rng.choice(self.lake.names)]},
            "scope": "AtStart",
            "source": {"format": "Parquet", "location": source},
        }
        return self.lake.resource("TableReplace", body)

    def ingest(self) -> Operation:
        return self.lake.ingest(self.rows(0, 4))

    def ours(self) -> Operation:
        kinds = (self.compaction, self.compaction, self.update, self.delete, self.merge)
        # A table with a log cannot be replaced in part.
        more = self.log_merge if self.has_log else self.replace
        return self.rng.choice((*kinds, self.ingest, more))()

    # Steps

    def others(self) -> None:
        key = self.rng.choice(self.keys)
        row = {"id": next(self.numbers), "k": 0, "v": next(self.numbers), **FRESH}
        changed = but(key, v=next(self.numbers), _CommitVersion=None)
        by_others(
            self.lake,
            self.rng.choice([but(key), changed, lambda rows: [*rows, row], lambda rows: rows]),
            key,
        )

    def run(self, interceptor: Interceptor = passthrough) -> None:
        status = self.lake.run(self.ours(), interceptor=interceptor)
        assert status.phase in ENDS or reason(status) == "Conflict", status

    def step(self) -> None:
        """An operation, in the rounds of which there are others."""
        acts = [self.rng.choice((self.others, self.run)) for _ in range(self.rng.randrange(3))]
        self.run(Hits([*acts], after=self.rng.random() < 0.5))


def values(lake: QuickLake, version: int) -> Mapping[int, tuple[int, int]]:
    return {key: (k, v) for key, k, v in lake.by_tandem(version)}


def mark(lake: QuickLake, version: int) -> int:
    body = lake.log.snapshot(version).domains["delta.rowTracking"].configuration
    return int(json.loads(body)[MARK])


def check(lake: QuickLake, version: int) -> None:
    """The commit of a version."""
    before, after = in_files(lake, version - 1), in_files(lake, version)
    were, are = values(lake, version - 1), values(lake, version)
    last = mark(lake, version - 1)
    assert mark(lake, version) >= last
    assert {*after} == {*are}
    for key, (row_id, own) in after.items():
        if key not in before:
            assert (row_id > last, own) == (True, version), (version, key)
            continue
        kept = before[key][1] if were[key] == are[key] else version
        assert (row_id, own) == (before[key][0], kept), (version, key)


@pytest.mark.part(2)
@pytest.mark.parametrize("part", range(2))
def test_R11_R12_every_commit_keeps_the_ids_of_rows(tmp_path: Path, part: int) -> None:
    count = few(4, 40)
    for seed in range(part * count, part * count + count):
        history = History(tmp_path / str(seed), seed)
        lake = history.lake
        for _ in range(4):
            since = lake.version
            history.step()
            for version in range(since + 1, lake.version + 1):
                check(lake, version)
