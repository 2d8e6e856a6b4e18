"""Each check of `simulator.invariants` lets a right commit pass, and notices a wrong one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from simulator.invariants import Invariants, Json, Seen, Violation, check_locks, check_start
from simulator.rows import Row
from tandem.locks.model import EntryState, LockEntry, LockRequest, Mode, named

ROWS = Counter([Row(1, 0, 0), Row(2, 0, 0)])


def add(path: str, rows: int = 2, dead: int = 0, **tags: str) -> Json:
    vector = {"storageType": "i", "pathOrInlineDv": str(dead), "cardinality": dead}
    return {
        "path": path,
        "modificationTime": 100,
        "dataChange": False,
        "stats": json.dumps({"numRecords": rows}),
        "tags": {f"tandem.{name}": value for name, value in tags.items()},
        **({"deletionVector": vector} if dead else {}),
    }


def remove(path: str, dead: int = 0) -> Json:
    return {k: v for k, v in add(path, dead=dead).items() if k != "stats"}


def commit(kind: str, adds: list[Json], removes: list[Json], **more: Any) -> Seen:
    """Version 8, on top of live files `a` (segment 1) and `b` (segment 2, one row dead)."""
    reconciled = {"commitsSeen": 2, "deletesRemapped": 1, "rowsMasked": 0}
    ours = {"kind": kind, "readVersion": 5, "result": {"reconciled": reconciled}, **more}
    live = {"a": add("a", segment="1", sequence="10"), "b": add("b", 3, 1, segment="2")}
    actions: list[Json] = [{"commitInfo": {"tandem": ours}}]
    actions += [{"add": each} for each in adds]
    actions += [{"remove": each} for each in removes]
    return Seen(8, actions, live)


def check(seen: Seen, after: Counter[Row] = ROWS) -> None:
    known = Invariants(first_seen={"a": 3, "b": 7 if seen.ours["readVersion"] == 6 else 4})
    known.high_water = 2
    known.check(seen, ROWS, after)


RIGHT = {
    "compaction": lambda: commit(
        "TableCompaction", [add("c", 4, segment="1.1")], [remove("a"), remove("b", 1)]
    ),
    "cut": lambda: commit(
        "TableCompaction",
        [add("a", 2, 1, segment="1"), add("c", 1, segment="1.1")],
        [remove("a")],
        resource="default/TableCompaction/cut-1",
    ),
    "segment rewrite": lambda: commit(
        "SegmentRewrite", [add("c", segment="1", sequence="10")], [remove("a")]
    ),
    "update": lambda: commit(
        "TableUpdate",
        [add("a", 2, 1, segment="1"), add("c", 1, segment="3", sequence="200")],
        [remove("a")],
    ),
    "ingest": lambda: commit("TableIngest", [add("c", segment="3", sequence="200")], []),
}


@pytest.mark.parametrize("name", RIGHT)
def test_correct_commits_pass(name: str) -> None:
    check(RIGHT[name]())


WRONG: list[tuple[str, Callable[[], Seen]]] = [
    ("I-2", lambda: commit("TableCompaction", [add("c") | {"dataChange": True}], [remove("a")])),
    ("I-3", lambda: commit("TableIngest", RIGHT["ingest"]().all("add"), [remove("a")])),
    ("I-3", lambda: commit("TableUpdate", [add("a")], [remove("a")])),
    ("I-6", lambda: commit("TableIngest", [add("c", segment="2", sequence="200")], [])),
    ("I-6", lambda: commit("TableIngest", [add("c", segment="3", sequence="9")], [])),
    (
        "I-7",
        lambda: commit(
            "TableCompaction",
            [add("c", segment="2.1")],
            [remove("b", 1)],
            readVersion=6,
            result={"reconciled": {"commitsSeen": 1, "deletesRemapped": 0, "rowsMasked": 0}},
        ),
    ),
    ("I-9", lambda: commit("TableCompaction", [add("c")], [remove("gone")])),
    ("I-9", lambda: commit("TableCompaction", [add("c")], [remove("b")])),
    ("I-10", lambda: commit("SegmentRewrite", [add("c", segment="9")], [remove("a")])),
    ("I-10", lambda: commit("SegmentRewrite", [add("c", segment="2")], [remove("a")])),
    (
        "I-13",
        lambda: commit(
            "TableUpdate",
            [add(path, segment=path, sequence="200") for path in ("3", "4")],
            [],
        ),
    ),
    ("I-15", lambda: commit("TableCompaction", [add("a", 2, 1)], [remove("a")])),
    ("I-17", lambda: commit("TableCompaction", [add("c", 4, 2)], [remove("a")])),
    ("I-17", lambda: commit("TableCompaction", [add("c", 3)], [remove("a")])),
    ("I-20", lambda: commit("TableUpdate", [add("a", 2, 2)], [remove("a")])),
    ("I-23", lambda: commit("TableIngest", RIGHT["ingest"]().all("add"), [], readVersion=6)),
    ("I-23", lambda: commit("TableIngest", RIGHT["ingest"]().all("add"), [], readVersion=8)),
]


@pytest.mark.parametrize(("name", "wrong"), WRONG)
def test_wrong_commits_are_found(name: str, wrong: Callable[[], Seen]) -> None:
    with pytest.raises(Violation, match=f"^{name}, version 8: "):
        check(wrong())


def test_a_table_without_vectors_gets_none() -> None:
    known = Invariants(vectors=False, first_seen={"a": 3, "b": 4}, high_water=2)
    known.check(RIGHT["compaction"](), ROWS, ROWS)
    with pytest.raises(Violation, match="vectors, "):
        known.check(RIGHT["update"](), ROWS, ROWS)


def test_a_rewrite_that_loses_a_row_is_noticed() -> None:
    with pytest.raises(Violation, match="I-2, "):
        check(RIGHT["compaction"](), Counter([Row(1, 0, 0)]))


def entry(operation: str, state: EntryState, *names: str) -> LockEntry:
    return LockEntry(LockRequest("t", operation, Mode.REWRITE, named(names)), state, 1)


def test_locks() -> None:
    one, other = (entry(o, EntryState.HELD, "0", "1") for o in ("one", "other"))
    waiting = entry("other", EntryState.WAITING, "1", "2")
    check_locks((one, waiting))
    check_start((one, waiting), "one", ("0",))
    with pytest.raises(Violation, match="I-26: "):
        check_locks((one, other))
    with pytest.raises(Violation, match="I-27: "):
        check_locks((waiting, waiting))
    for operation, segments in (("other", ("1",)), ("one", ("2",)), ("absent", ("0",))):
        with pytest.raises(Violation, match="I-28: "):
            check_start((one, waiting), operation, segments)
