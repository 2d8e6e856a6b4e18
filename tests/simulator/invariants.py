"""Invariants that each commit of ours must keep, by the name that they have in the catalogue.

`Invariants.check` is asked for every version as soon as it is there. What must be true of rows
(I-2, I-14, I-16, I-17, I-19) is seen by the checker, which compares rows; here is what the log
itself must show. `invariants.md` says where each invariant is checked.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from simulator.rows import Row
from tandem.locks.rules import EntryState, LockEntry, conflict
from tandem.mergelog.versions import MERGED
from tandem.spec.common import OPERATIONS, Mode
from tandem.timeline.names import HIGH_WATER_APP, foreign_name, parse_name
from tandem.timeline.segments import TAG_SEQUENCE

Json = dict[str, Any]


def mode_of(kind: str) -> Mode | None:
    """What operations of a kind promise to do."""
    model = OPERATIONS.get(kind)
    return None if model is None else model.mode


class Violation(AssertionError):
    """The table shows what no serial order of the operations gives, or an invariant is broken."""


@dataclass(frozen=True)
class Seen:
    """One version: its actions, and the live files before it, by decoded path. `vectors`: the
    version before it has deletion vectors on. `edited`: which of its files are edits of live files,
    and of which; `heirs`: files that a rewrite removes in places of its inputs."""

    version: int
    actions: list[Json]
    live: dict[str, Json]
    vectors: bool = True
    edited: Mapping[str, str] = field(default_factory=dict)
    heirs: Collection[str] = ()

    def all(self, name: str) -> list[Json]:
        return [action[name] for action in self.actions if name in action]

    @property
    def info(self) -> Json:
        (info,) = self.all("commitInfo")
        return dict(info)

    @property
    def ours(self) -> Json:
        """Our own part of the commitInfo, empty for foreign commits and abandonments."""
        found = self.info.get("tandem") or {}
        return {} if "abandoned" in found else dict(found)

    @property
    def kind(self) -> str:
        return str(self.ours.get("kind", ""))

    @property
    def mode(self) -> Mode | None:
        """What our own operation promises to do; None for others' commits."""
        return Mode.UPDATE if self.merges_log else mode_of(self.kind)

    @property
    def merges_log(self) -> bool:
        """Whether it is a log merge: a compaction that deletes and inserts rows."""
        return any(txn["appId"].startswith(MERGED) for txn in self.all("txn"))

    @property
    def adds(self) -> dict[str, Json]:
        return {unquote(add["path"]): add for add in self.all("add")}

    @property
    def removes(self) -> dict[str, Json]:
        return {unquote(gone["path"]): gone for gone in self.all("remove")}

    @property
    def new(self) -> dict[str, Json]:
        """Files that were not live before; the others got another deletion vector."""
        return {path: add for path, add in self.adds.items() if path not in self.live}

    @property
    def fresh(self) -> dict[str, Json]:
        """New files that take no other one's place."""
        return {path: add for path, add in self.new.items() if path not in self.edited}

    def rows_of(self, path: str) -> int:
        """The rows of a file that it adds, deleted ones included."""
        return int(json.loads(self.adds[path]["stats"])["numRecords"])


@dataclass
class Invariants:
    """What must be remembered from version to version."""

    first_seen: dict[str, int] = field(default_factory=dict)
    numbers: set[int] = field(default_factory=set)
    high_water: int = -1
    tracked: bool = False
    mark: int = -1  # of row ids
    checked: Counter[str] = field(default_factory=Counter)

    def check(self, seen: Seen, before: Counter[Row], after: Counter[Row]) -> None:
        """Raises Violation."""
        if seen.ours:
            for name, problem in self._broken(seen, before, after):
                self.checked[name] += 1
                if problem:
                    raise Violation(f"{name}, version {seen.version}: {problem}")
        for path in seen.adds:
            self.first_seen.setdefault(path, seen.version)
        for txn in seen.all("txn"):
            if txn["appId"] == HIGH_WATER_APP:
                self.high_water = max(self.high_water, txn["version"])
        self.mark = max([self.mark, *_marks(seen)])

    def _broken(
        self, seen: Seen, before: Counter[Row], after: Counter[Row]
    ) -> Iterator[tuple[str, object]]:
        """(invariant, what breaks it or nothing) for each that speaks of such a commit."""
        yield "I-3", i_3_added_and_removed(seen)
        yield "I-6", self.i_6_place_of_another_time(seen)
        yield "I-9", i_9_removed_but_not_live(seen)
        yield "I-20", i_20_files_without_a_row(seen)
        yield "R-2", r_2_vectors_where_they_are_off(seen)
        yield "I-23", i_23_window_begins_later(seen)
        if self.tracked:
            yield "R-12", self.r_12_wrong_row_ids(seen)
        if seen.mode is Mode.REWRITE:
            yield "I-2", i_2_rows_changed(seen, before, after)
            yield "I-7", self.i_7_inputs_younger_than_the_plan(seen)
            yield "I-15", i_15_files_of_others_touched(seen)
            yield "I-17", i_17_miscounted_replay(seen)
        if seen.kind == "SegmentRewrite":
            yield "I-10", i_10_segments_changed(seen)
        if seen.mode is Mode.UPDATE:
            yield "I-13", i_13_not_one_new_segment(seen)
        if seen.mode is Mode.APPEND:
            yield "I-3", [*seen.removes]

    def i_6_place_of_another_time(self, seen: Seen) -> object:
        """Numbers and places in the order are given when it commits, never before."""
        if seen.mode is Mode.REWRITE:
            return []
        newest = max((_sequence(add) for add in seen.live.values()), default=-1)
        wrong = []
        for path, add in seen.fresh.items():
            name = parse_name(_segment(path, add))
            if name is None or name.number is None or name.number <= self.high_water:
                wrong.append(f"{path} in segment {name}, {self.high_water} was given out")
            if _sequence(add) <= newest:
                wrong.append(f"{path} at {_sequence(add)}, not after {newest}")
        return wrong

    def r_12_wrong_row_ids(self, seen: Seen) -> object:
        """New files have ids above the mark, which rises to the last of them; others keep theirs,
        also where they are removed."""
        ids = {path: _row_ids(add) for path, add in seen.live.items()}
        wrong = [
            path
            for path, found in (*seen.adds.items(), *seen.removes.items())
            if path in ids and _row_ids(found) != ids[path]
        ]
        next_id = self.mark + 1
        for path, add in sorted(seen.new.items(), key=lambda item: item[1].get("baseRowId", -1)):
            if _row_ids(add) != (next_id, seen.version):
                wrong.append(path)
            next_id += seen.rows_of(path)
        return wrong or ([] if _marks(seen) == [next_id - 1][: next_id > self.mark + 1] else "mark")

    def i_7_inputs_younger_than_the_plan(self, seen: Seen) -> object:
        read = seen.ours["readVersion"]
        planned = seen.removes.keys() - seen.heirs
        return [path for path in planned if self.first_seen[path] > read]


def i_2_rows_changed(seen: Seen, before: Counter[Row], after: Counter[Row]) -> object:
    data_change = [a["path"] for a in (*seen.all("add"), *seen.all("remove")) if a["dataChange"]]
    return data_change or [*(before - after), *(after - before)]


def i_3_added_and_removed(seen: Seen) -> object:
    added = {(path, _vector_id(add)) for path, add in seen.adds.items()}
    twice = len(seen.all("add")) != len(seen.adds) or len(seen.all("remove")) != len(seen.removes)
    return [p for p, gone in seen.removes.items() if (p, _vector_id(gone)) in added] or twice


def i_9_removed_but_not_live(seen: Seen) -> object:
    """A commit removes files as they are in the version before it, vector included."""
    return [
        path
        for path, gone in seen.removes.items()
        if path not in seen.live or _vector_id(seen.live[path]) != _vector_id(gone)
    ] or [path for path in seen.adds if path in seen.live and path not in seen.removes]


def i_10_segments_changed(seen: Seen) -> object:
    """No sibling is hidden: names stay, and a segment's rows come from itself."""
    before = {_segment(path, add) for path, add in seen.live.items()}
    new = {_segment(path, add) for path, add in seen.new.items()}
    gone = {_segment(path, seen.live[path]) for path in seen.removes}
    return [*(new - before), *(new - gone)]


def i_13_not_one_new_segment(seen: Seen) -> object:
    """Deletes on old files, inserts in one new segment, in the same commit. An edit stays in the
    segment of the file that it replaces."""
    moved = [
        path
        for path, source in seen.edited.items()
        if source not in seen.removes
        or _segment(path, seen.adds[path]) != _segment(source, seen.live[source])
        or _sequence(seen.adds[path]) != _sequence(seen.live[source])
    ]
    new = {_segment(path, add) for path, add in seen.fresh.items()}
    known = {_segment(path, add) for path, add in seen.live.items()}
    fewer = [
        path
        for path, add in seen.adds.items()
        if path in seen.live and _dead(add) <= _dead(seen.live[path])
    ]
    return moved or fewer or (new if len(new) > 1 else new & known)


def i_15_files_of_others_touched(seen: Seen) -> object:
    """A replay marks rows of our own outputs only. A cut marks those that it takes, too, and so
    does a rewrite with heirs, which keep the rows that they changed."""
    cuts = str(seen.ours.get("resource")).startswith("default/TableCompaction/cut")
    return [
        path
        for path, add in seen.adds.items()
        if path in seen.live
        and not ((cuts or path in seen.heirs) and _dead(add) > _dead(seen.live[path]))
    ]


def i_17_miscounted_replay(seen: Seen) -> object:
    """Rows masked in outputs are those that were replayed, and as many rows come as go."""
    reconciled = seen.ours["result"]["reconciled"]
    masked = sum(_dead(add) for add in seen.new.values())
    replayed = reconciled["deletesRemapped"] + reconciled["rowsMasked"]
    # What was masked in outputs that were dropped for it is counted too.
    if masked > replayed:
        return f"{masked} rows are masked, {replayed} were replayed"
    come = sum(_live(add) for add in seen.adds.values())
    go = sum(_live(seen.live[path]) for path in seen.removes)
    return "" if come == go else f"{come} rows come, {go} go"


def i_20_files_without_a_row(seen: Seen) -> object:
    """A file that was emptied is removed, and an output without a row is not added."""
    return [path for path, add in seen.adds.items() if _live(add) <= 0]


def i_23_window_begins_later(seen: Seen) -> object:
    """The conflict window is reported, starts before the commit, and holds every version in it."""
    read = seen.ours["readVersion"]
    count = seen.ours["result"]["reconciled"]["commitsSeen"]
    if not 0 <= read < seen.version:
        return f"it read version {read}"
    others = seen.version - 1 - read
    return "" if count == others else f"{count} commits were seen of {others} since {read}"


def r_2_vectors_where_they_are_off(seen: Seen) -> object:
    return [] if seen.vectors else [path for path, add in seen.adds.items() if _dead(add)]


# --- Locks --------------------------------------------------------------------------------------


def check_locks(entries: tuple[LockEntry, ...]) -> None:
    """I-26: a holder holds all that it requested, and no other one any of it. I-27: an
    operation has one entry. Raises Violation."""
    held = [entry for entry in entries if entry.state is not EntryState.WAITING]
    held = [entry for entry in held if not entry.revoked_by]
    for index, entry in enumerate(held):
        for other in held[:index]:
            if conflict(entry.request, other.request) is not None:
                raise Violation(f"I-26: {entry} and {other} are held at once")
    operations = [entry.request.operation for entry in entries]
    if len(set(operations)) != len(operations):
        raise Violation(f"I-27: an operation has two entries: {operations}")


def check_start(
    entries: tuple[LockEntry, ...], operation_id: str, segments: tuple[str, ...]
) -> None:
    """I-28: a job starts only while its operation holds all that its plan names. For histories
    in which no process is taken for dead. Raises Violation."""
    for entry in entries:
        if entry.request.operation == operation_id and entry.state is not EntryState.WAITING:
            held = entry.request.resources
            if not held.names or held.segments.issuperset(segments):
                return
    raise Violation(f"I-28: {operation_id} starts without its locks on {segments}")


# --- Small things -------------------------------------------------------------------------------


def _row_ids(action: Json) -> tuple[Any, Any]:
    return action.get("baseRowId"), action.get("defaultRowCommitVersion")


def _marks(seen: Seen) -> list[int]:
    found = [each for each in seen.all("domainMetadata") if each["domain"] == "delta.rowTracking"]
    return [json.loads(each["configuration"])["rowIdHighWaterMark"] for each in found]


def _vector_id(action: Json) -> str:
    vector = action.get("deletionVector") or {}
    offset = vector.get("offset")
    return f"{vector.get('storageType', '')}{vector.get('pathOrInlineDv', '')}@{offset}"


def _dead(add: Json) -> int:
    return int((add.get("deletionVector") or {}).get("cardinality", 0))


def _live(add: Json) -> int:
    return int(json.loads(add["stats"])["numRecords"]) - _dead(add)


def _segment(path: str, add: Json) -> str:
    return str((add.get("tags") or {}).get("tandem.segment") or foreign_name(add["path"]))


def _sequence(add: Json) -> int:
    return int((add.get("tags") or {}).get(TAG_SEQUENCE) or add["modificationTime"])
