"""The checks of the simulator fail where they should."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from pyroaring import BitMap64

from simulator.edit_invariants import Evidence, broken
from simulator.history import History
from simulator.invariants import Invariants, Json, Seen, Violation, check_locks, check_start
from simulator.rows import Row
from simulator.single import OFF, Single
from tandem.delta import dv
from tandem.delta.datafiles.edited_files import EditedFile
from tandem.jobs.formats import InputFile, RewriteJob
from tandem.locks.rules import EntryState, LockEntry, LockRequest, Mode, named
from tandem.operations import attempt_files
from tandem.operations.kinds.log_merge import LogMergeKind, StatementLog
from tandem.operations.machine.events import Point
from tandem.operations.model import CommitContent, Work
from tandem.rowmap import binary_format
from tandem.rowmap.rowmap import RowMap, RowMapBuilder, RowMapIdentity
from tandem.spark.jobs.edits import EditMaker, WantedEdit

# Each check of `simulator.invariants` lets a right commit pass, and notices a wrong one.


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


def test_R2_a_table_without_vectors_gets_none() -> None:
    known = Invariants(first_seen={"a": 3, "b": 4}, high_water=2)
    known.check(replace(RIGHT["compaction"](), vectors=False), ROWS, ROWS)
    with pytest.raises(Violation, match="R-2, "):
        known.check(replace(RIGHT["update"](), vectors=False), ROWS, ROWS)


# What edits must keep -------------------------------------------------------------------------

OLD = {
    "a": [Row(1, 0, 0), Row(2, 0, 0)],
    "b": [Row(3, 0, 0), Row(4, 0, 0), Row(5, 0, 0)],  # the first one is dead
}


def row_map(*outputs: tuple[str, str, int, int], changed: Mapping[str, set[int]] = {}) -> RowMap:
    """Each output has the rows of a range of one input."""
    builder = RowMapBuilder(RowMapIdentity("simulated", "op", 1, 5))
    for path in dict.fromkeys(source for _, source, _, _ in outputs):
        builder.add_input(path, len(OLD[path]), BitMap64([0]) if path == "b" else BitMap64())
    for output, source, start, end in outputs:
        builder.add_run(source, start, end, output)
    for output, rows in changed.items():
        builder.add_changed(output, BitMap64(rows))
    return builder.build()


def evidence(row_map: RowMap | None = None, **new: list[Row]) -> Evidence:
    return Evidence({**OLD, **new}, {"a": set(), "b": {0}}, row_map=row_map)


def rewrites(found: Evidence, *inputs: str, job_map: RowMap | None = None) -> Evidence:
    """It is that of a job with these inputs."""
    vectors = {"a": "", "b": dv.to_base64(BitMap64([0]))}
    files = tuple(
        InputFile(logged_path=path, size=1, rows=len(OLD[path]), dv=vectors[path])
        for path in inputs
    )
    job = RewriteJob(inputs=files, bins=(), target_file_size=0)
    return replace(found, job=job, job_map=job_map)


def edit(source: str, *drops: int) -> WantedEdit:
    file = InputFile(logged_path=source, size=1, rows=len(OLD[source]))
    return WantedEdit(file, BitMap64(drops))


A1, A2, B1, B2 = OLD["a"] + OLD["b"][1:]
BOTH = row_map(("c", "a", 0, 2), ("c", "b", 1, 3))
WHOLE = evidence(BOTH, c=[A1, A2, B1, B2])
COMPACTED = commit("TableCompaction", [add("c", 4)], [remove("a"), remove("b", 1)])
UPDATED = commit("TableUpdate", [add("c", 2, segment="2")], [remove("b", 1)])

KEPT: list[tuple[Seen, Evidence]] = [
    (COMPACTED, rewrites(WHOLE, "a", "b", job_map=BOTH)),
    (COMPACTED, rewrites(WHOLE, "a", job_map=row_map(("c", "a", 0, 2)))),  # b is an heir
    (
        UPDATED,
        replace(
            evidence(row_map(("c", "b", 1, 3), changed={"c": {1}}), c=[B1, B2._replace(v=9)]),
            edits={"c": edit("b", 0)},
        ),
    ),
]
BROKEN: list[tuple[str, Seen, Evidence]] = [
    ("R-1", COMPACTED, evidence(c=[A1, A2, B1])),
    ("R-4", UPDATED, replace(evidence(c=[B1, B2]), edits={"c": edit("b")})),
    ("R-4", UPDATED, replace(evidence(c=[A1, A2]), edits={"c": edit("a")})),
    ("R-5", UPDATED, evidence(row_map(("c", "a", 0, 2)), c=[A1, A2])),
    ("R-6", UPDATED, evidence(row_map(("c", "b", 1, 3)), c=[B1, B2._replace(v=9)])),
    ("R-6", UPDATED, evidence(row_map(("c", "b", 1, 3), changed={"c": {1}}), c=[B1, A1])),
    ("R-7", COMPACTED, rewrites(evidence(c=[A1, A2, B1, A1]), "a")),
    ("R-8", COMPACTED, replace(rewrites(WHOLE, "a", "b"), dead_after={"c": {3}})),
    ("R-9", UPDATED, rewrites(evidence(c=[B1, B2]), "a", "b", job_map=row_map(("d", "a", 0, 2)))),
]


def test_R12_wrong_row_ids_are_found() -> None:
    def ids(action: Json, base: int, version: int) -> Json:
        return {**action, "baseRowId": base, "defaultRowCommitVersion": version}

    def seen(*adds: Json, gone: Json, mark: int) -> Seen:
        body = {"domain": "delta.rowTracking", "configuration": f'{{"rowIdHighWaterMark":{mark}}}'}
        actions: list[Json] = [{"add": each} for each in adds]
        actions += [{"remove": gone}, *([{"domainMetadata": body}] if mark > 6 else [])]
        return Seen(8, actions, {"a": ids(add("a"), 0, 3)})

    def wrong(found: Seen) -> object:
        return Invariants(tracked=True, mark=6).r_12_wrong_row_ids(found)

    gone, again = ids(remove("a"), 0, 3), ids(add("a", dead=1), 0, 3)
    new = [ids(add("b", 3), 7, 8), ids(add("c", 1), 10, 8)]
    assert not wrong(seen(*new, gone=gone, mark=10))
    assert not wrong(seen(again, gone=gone, mark=6))
    for adds in (ids(add("b", 3), 6, 8), ids(add("b", 3), 7, 7), ids(again, 7, 8), add("b", 3)):
        assert wrong(seen(adds, gone=gone, mark=9))
    assert wrong(seen(again, gone=remove("a"), mark=6))
    assert wrong(seen(*new, gone=gone, mark=9)) == "mark"
    assert wrong(seen(*new, gone=gone, mark=6)) == "mark"


@pytest.mark.parametrize(("seen", "found"), KEPT)
def test_correct_edits_pass(seen: Seen, found: Evidence) -> None:
    assert [name for name, problem in broken(seen, found) if problem] == []


@pytest.mark.parametrize(("name", "seen", "found"), BROKEN)
def test_wrong_edits_are_found(name: str, seen: Seen, found: Evidence) -> None:
    assert name in {broken_ for broken_, problem in broken(seen, found) if problem}


def test_R1_an_edit_without_another_row_is_found_when_it_is_made() -> None:
    single = Single(f"delete{OFF}")
    make = EditMaker.make

    def wrong(maker: EditMaker, wanted: Sequence[WantedEdit]) -> list[EditedFile]:
        rows = BitMap64(range(wanted[0].source.rows))
        others = BitMap64(sorted(rows - wanted[0].drops)[: len(wanted[0].drops)])
        return make(maker, [replace(wanted[0], drops=others), *wanted[1:]])

    with patch.object(EditMaker, "make", wrong), pytest.raises(Violation, match=r"^R-1: "):
        single.run()


def test_R3_an_edit_of_an_edit_is_found_when_it_is_made() -> None:
    single = Single(f"delete{OFF}")
    assert single.run() is not None
    edits = single.world.edits
    path, made = next(iter(edits.made.items()))
    source = made.source.model_copy(
        update={"logged_path": path, "rows": made.source.rows - len(made.drops)}
    )
    with pytest.raises(Violation, match=r"^R-3: "):
        edits.check(WantedEdit(source, BitMap64()), path)


def test_a_row_map_that_does_not_know_the_files_of_its_commit_is_found() -> None:
    single = Single(f"update{OFF}")
    session = single.at(Point.PUT_COMMIT)
    path = attempt_files.row_map(single.operation_id, 1)
    single.world.store.put(path, binary_format.to_bytes(BOTH))
    with pytest.raises(Violation, match=r"^R-5, version 7: "):
        single.drive(session)


def test_a_rewrite_that_loses_a_row_is_noticed() -> None:
    with pytest.raises(Violation, match="I-2, "):
        check(RIGHT["compaction"](), Counter([Row(1, 0, 0)]))


def entry(operation: str, state: EntryState, *names: str) -> LockEntry:
    return LockEntry(LockRequest("t", operation, Mode.REWRITE, named(names)), state, 1)


def test_checks_of_locks_fail_for_two_holders_and_two_waiting_entries() -> None:
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


# The histories on tables with a log of blocks notice planted bugs in statements and merges.


SEEDS = 40


def noticed() -> str:
    """What the first history that is wrong says."""
    for seed in range(SEEDS):
        try:
            History(seed, merge_on_read=True).run()
        except Violation as violation:
            return str(violation)
    return ""


def test_a_statement_that_misses_an_acknowledged_upsert_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(StatementLog, "prerequisite", lambda *_: None)
    assert "has not seen the instants" in noticed()


def test_an_upsert_that_comes_meanwhile_and_is_lost_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The merge before a statement marks also what came after its plan."""
    real = LogMergeKind.change

    def change(self: LogMergeKind, work: Work) -> CommitContent:
        found = real(self, work)
        newest = self._log_at_plan(work).log.log.latest_version()
        return replace(found, txns=tuple(replace(txn, version=newest) for txn in found.txns))

    monkeypatch.setattr(LogMergeKind, "change", change)
    assert noticed()
