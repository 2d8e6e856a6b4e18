"""What becomes of row ids and commit versions in a cell of the W matrix.

Rows are looked at before and after each commit, or few commits of one writer. By R-11, rows that
are as they were keep both; rows with other values keep their id, and have the version of the
commit; new rows have ids above the mark that was. By R-12, ids are unique, and the mark never
falls. The rules hold for the commits of others as well, which read files of ours: but what they
put in the place of rows, as an overwrite or a restore does, is theirs.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from support.foreign.process import Engine
from support.lake.lake import Lake
from support.lake.tracking import rows_in_files
from support.present import present
from tandem.delta.row_tracking import DOMAIN

Values = Mapping[str, Any]


@dataclass(frozen=True)
class State:
    """A version: its mark, and by `id` of each row its row id, commit version and values. `several`
    are the `id`s that more than one row has: others may insert what is there. `ids`: row ids and
    commit versions of all rows."""

    version: int
    mark: int
    rows: Mapping[int, tuple[int, int, Values]]
    several: frozenset[int]
    ids: Counter[tuple[int, int]]


@dataclass
class RowIds:
    """Looks at a table, and keeps what broke a rule. A look reads the files as the protocol defines
    ids; Spark + Delta takes seconds, and judges what the last look found."""

    lake: Lake
    spark: Engine
    wrong: list[str] = field(default_factory=list)
    _last: State | None = None

    def look(self, *, ours: bool) -> None:
        """At the latest version, which is `ours`, as are all since the last look."""
        now = self._read()
        self.wrong += _alone(now)
        if self._last is not None and now.version > self._last.version:
            self.wrong += _between(self._last, now, ours=ours)
        self._last = now

    def judge(self) -> None:
        """By Spark + Delta, of the last look."""
        last = present(self._last)
        found = self.spark.call("row_ids", location=str(self.lake.path))
        by_spark = Counter((row["row_id"], row["version"]) for row in found)
        if by_spark != last.ids:
            self.wrong.append(f"version {last.version}: by Spark {by_spark}, found {last.ids}")

    def _read(self) -> State:
        snapshot = self.lake.log.snapshot()
        name = next(each.physical_name for each in snapshot.schema if each.name == "id")
        found = [(row[2][name], row) for row in rows_in_files(self.lake, snapshot.version)]
        ids = Counter(row[:2] for _, row in found)
        if len({row_id for row_id, _ in ids}) < len(found):
            self.wrong.append(f"version {snapshot.version}: ids given twice in {sorted(ids)}")
        mark = json.loads(snapshot.domains[DOMAIN].configuration)["rowIdHighWaterMark"]
        counted = Counter(key for key, _ in found)
        several = frozenset(key for key, count in counted.items() if count > 1)
        return State(snapshot.version, mark, dict(found), several, ids)


def _alone(state: State) -> Iterator[str]:
    above = {key: row[0] for key, row in state.rows.items() if row[0] > state.mark}
    if above:
        yield f"version {state.version}: ids above the mark, {state.mark}: {above}"


def _between(old: State, new: State, *, ours: bool) -> Iterator[str]:
    where = f"versions {old.version} to {new.version}, {'ours' if ours else 'theirs'}: "
    if new.mark < old.mark:
        yield f"{where}the mark falls from {old.mark} to {new.mark}"
    for key, (row_id, version, values) in new.rows.items():
        if key in old.several | new.several:
            continue  # which of them is which is not known
        is_new = old.version < version <= new.version
        before = old.rows.get(key)
        if before is None:
            if ours and not (row_id > old.mark and is_new):
                yield f"{where}new row {key} has id {row_id}, version {version}; mark {old.mark}"
        elif row_id != before[0]:
            yield f"{where}row {key} had id {before[0]}, has {row_id}"
        elif _same(before[2], values):
            if version != before[1]:
                yield f"{where}unchanged row {key} had version {before[1]}, has {version}"
        elif ours and not is_new:
            yield f"{where}changed row {key} has version {version}"


def _same(old: Values, new: Values) -> bool:
    """Of the columns that both have: others were added, dropped or renamed."""
    return all(old[name] == new[name] for name in old.keys() & new.keys())
