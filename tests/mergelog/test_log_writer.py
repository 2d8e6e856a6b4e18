"""`LogWriter`: a batch counts once, whatever dies or gets lost; no append aborts another."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from mergelog.lake import Merged, dies_at, in_memory, keys, table
from support.lake.faults import ProcessDied
from support.lake.memory_store import Call, MemoryStore
from tandem.delta.actions import Action, AddFile, Commit, Txn
from tandem.delta.log.listing import commit_path
from tandem.delta.log.maintenance import write_checkpoint
from tandem.delta.log.snapshot import commit_info
from tandem.delta.schema import ArrayType, Field, PrimitiveType, StructType
from tandem.errors import AlreadyExists, InvalidSpec, OutcomeUnknown, StorageFull
from tandem.mergelog import writer as writer_module
from tandem.mergelog.log_table import CHECKPOINT_INTERVAL
from tandem.mergelog.versions import ROLLBACK, WRITER
from tandem.mergelog.writer import LAST_BATCH, LATE_MS, Appended, LogWriter


def commits(merged: Merged) -> list[Commit]:
    return merged.log.log.commits(*merged.log.log.versions())


def batches(found: Iterable[Commit], name: str = "w") -> list[int]:
    """The batches of a writer, as often as they were committed."""
    return [
        action.version
        for commit in found
        for action in commit.actions
        if isinstance(action, Txn) and action.app_id == WRITER + name
    ]


def block_files(store: MemoryStore) -> list[str]:
    return [path for path in store.paths() if "/blocks/" in path]


# What an append means


def test_rows_and_deletes_of_an_append_are_one_instant() -> None:
    merged = Merged(in_memory())
    assert merged.append(table((1, "a", None), (2, "b", None))) == Appended(1)
    assert merged.append(table((2, "B", None), (3, "c", None)), keys(1)) == Appended(2)
    assert merged.rows() == [(2, "B", None), (3, "c", None)]
    added = [action for action in commits(merged)[2].actions if isinstance(action, AddFile)]
    assert [dict(add.tags) for add in added] == [
        {"tandem.log.first": "2", "tandem.log.last": "2", "tandem.log.deletes": "1"}
    ]


def test_the_later_row_of_a_key_wins_and_deletes_follow_the_rows() -> None:
    merged = Merged(in_memory())
    merged.append(table((1, "a", None), (2, "b", None), (1, "c", None)), keys(2, 2))
    assert merged.rows() == [(1, "c", None)]


def test_the_greater_value_of_the_ordering_column_wins_within_an_append_too() -> None:
    merged = Merged(in_memory(), ordering="v")
    deletes = pa.table({"k": [2, 3], "v": ["x", "y"]})
    rows = [(1, "b", "first"), (1, "a", "second"), (2, "y", None), (3, "x", None)]
    merged.append(table(*rows, (1, "b", "third")), deletes)
    assert merged.rows() == [(1, "b", "third"), (2, "y", None)]


def test_columns_come_in_any_order_and_absent_ones_are_null() -> None:
    merged = Merged(in_memory())
    merged.append(pa.record_batch({"p": ["x"], "k": [1]}))
    assert merged.rows() == [(1, None, "x")]


STRICT = StructType(
    (
        Field("k", PrimitiveType("long")),
        Field("v", PrimitiveType("string"), nullable=False),
        Field("n", PrimitiveType("integer")),
        Field("s", ArrayType(StructType((Field("a", PrimitiveType("integer"), nullable=False),)))),
        Field("t", StructType((Field("b", PrimitiveType("integer")),))),
    )
)
INNER = pa.list_(pa.struct([("a", pa.int32())]))
WRONG: dict[str, tuple[Any, Any, str]] = {
    "nothing": (None, None, "rows"),
    "no rows": (pa.table({"k": pa.array([], pa.int64())}), None, "rows"),
    "unknown column": (pa.table({"k": [1], "v": ["a"], "w": [1]}), None, "w"),
    "the log's own column": (pa.table({"k": [1], "__tandem_deleted": [True]}), None,
                             "__tandem_deleted"),
    "column twice": (pa.table([[1], ["a"], ["b"]], ["k", "v", "v"]), None, "v"),
    "another case": (pa.table({"K": [1], "v": ["a"]}), None, "K"),
    "row without a key": (pa.table({"v": ["a"]}), None, "k"),
    "null key": (pa.table({"k": [1, None], "v": ["a", "b"]}), None, "k"),
    "null in NOT NULL": (pa.table({"k": [1], "v": pa.array([None], pa.string())}), None, "v"),
    "absent NOT NULL": (pa.table({"k": [1]}), None, "v"),
    "null in a nested NOT NULL": (
        pa.table({"k": [1], "v": ["a"], "s": pa.array([[{"a": None}]], INNER)}), None,
        "s.element.a"),
    "text as number": (pa.table({"k": ["1"], "v": ["a"]}), None, "k"),
    "number as text": (pa.table({"k": [1], "v": [1]}), None, "v"),
    "fraction as number": (pa.table({"k": [1.0], "v": ["a"]}), None, "k"),
    "too large": (pa.table({"k": [1], "v": ["a"], "n": [2**31]}), None, "n"),
    "unknown nested field": (pa.table({"k": [1], "v": ["a"], "t": [{"c": 1}]}), None, "t.c"),
    "list as struct": (pa.table({"k": [1], "v": ["a"], "t": [[1]]}), None, "t"),
    "delete without a key": (None, pa.table({"v": ["a"]}), "v"),
    "delete with another column": (None, pa.table({"k": [1], "v": ["a"]}), "v"),
    "delete of a null key": (None, pa.table({"k": pa.array([None], pa.int64())}), "k"),
    "right rows, wrong delete": (pa.table({"k": [1], "v": ["a"]}), pa.table({"k": ["1"]}), "k"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_rows_are_refused_before_anything_is_written(case: str) -> None:
    store = in_memory(schema=STRICT)
    merged = Merged(store)
    before = store.paths()
    rows, deletes, field = WRONG[case]
    with pytest.raises(InvalidSpec) as caught:
        merged.append(rows, deletes)
    assert caught.value.field == field
    assert store.paths() == before
    merged.append(pa.table({"k": [1], "v": ["a"]}), keys(2))
    assert merged.rows() == [(1, "a", None, None, None)]


def test_a_delete_needs_the_ordering_column_if_there_is_one() -> None:
    store = in_memory()
    merged = Merged(store, ordering="v")
    for rows, deletes in ((None, keys(1)), (pa.table({"k": [1]}), None)):
        with pytest.raises(InvalidSpec, match="lacks a column"):
            merged.append(rows, deletes)
    assert not block_files(store)


@pytest.mark.parametrize("name", ["", "a\nb"])
def test_a_writer_needs_a_printable_name(name: str) -> None:
    with pytest.raises(InvalidSpec):
        Merged(in_memory()).new_writer(name)


def test_batches_are_numbered_from_zero() -> None:
    merged = Merged(in_memory())
    for batch in (-1, LAST_BATCH + 1):
        with pytest.raises(ValueError, match=f"from 0 to {2**63 - 1}"):
            merged.writer.append(table((1, "a", None)), batch=batch)
    assert merged.log.snapshot().version == 0
    assert merged.writer.append(table((1, "a", None)), batch=0) == Appended(1)
    assert merged.writer.last_batch == 0


def test_the_last_batch_is_the_greatest_that_a_log_can_keep() -> None:
    merged = Merged(in_memory())
    merged.writer.append(table((1, "a", None)), batch=np.int64(LAST_BATCH))  # type: ignore[arg-type]
    write_checkpoint(merged.log.log, merged.log.snapshot(), now_ms=0)
    again = merged.new_writer("w")
    assert again.last_batch == LAST_BATCH
    assert again.append(table((1, "z", None)), batch=LAST_BATCH) == Appended(1, repeated=True)
    assert merged.rows() == [(1, "a", None)]


# A batch counts once


def test_a_repeated_batch_is_found_and_writes_nothing() -> None:
    store = in_memory()
    merged = Merged(store)
    assert merged.writer.last_batch is None
    merged.writer.append(table((1, "a", None)), batch=5)
    merged.writer.append(table((2, "b", None)), batch=7)
    before = store.paths()
    again = merged.new_writer("w")
    for writer in (merged.writer, again):
        assert writer.last_batch == 7
        assert writer.append(table((1, "z", None)), batch=5) == Appended(1, repeated=True)
        assert writer.append(table((1, "z", None)), batch=7) == Appended(2, repeated=True)
        assert writer.append(table((1, "z", None)), batch=6) == Appended(None, repeated=True)
    assert store.paths() == before
    assert merged.new_writer("another").append(table((1, "z", None)), batch=5) == Appended(3)


def test_a_repeated_batch_is_found_after_its_commit_was_cleaned_up() -> None:
    store = in_memory()
    merged = Merged(store)
    for batch in range(4):
        merged.writer.append(table((batch, "a", None)), batch=batch)
    write_checkpoint(merged.log.log, merged.log.snapshot(3), now_ms=0)
    store.delete([p for p in store.paths() if p.endswith(tuple(f"{v}.json" for v in range(4)))
                  and p.startswith("_tandem")])  # fmt: skip
    assert merged.new_writer("w").append(table((2, "z", None)), batch=2) == Appended(
        None, repeated=True
    )
    assert merged.new_writer("w").append(table((3, "z", None)), batch=3) == Appended(
        4, repeated=True
    )


def test_a_repeated_batch_is_searched_in_the_newest_commits_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writer_module, "SEARCHED", 2)
    merged = Merged(in_memory())
    merged.append(table((1, "a", None)))
    other = merged.new_writer("another")
    for found in (Appended(1, repeated=True), Appended(None, repeated=True)):
        other.append(table((2, "b", None)), batch=2 + (other.last_batch or 0))
        assert merged.new_writer("w").append(table((1, "z", None)), batch=1) == found


@pytest.mark.parametrize("left", [0, 1])
@pytest.mark.parametrize("clock", ["that of the wall", "the monotonic one", "one set back"])
def test_a_put_below_the_versions_that_cleaning_left_is_repeated(left: int, clock: str) -> None:
    """A writer that slept puts a version whose commit was removed; of those before it a cleaning
    that was killed left some, since a store deletes them in any order. One clock shows the sleep:
    a machine that is suspended may stop the monotonic one, and the other may be set back."""
    store = in_memory()
    merged = Merged(store)
    asleep: list[bool] = []

    def time_ms(after: int) -> int:
        return after if asleep else 0

    wall = {"that of the wall": 2 * LATE_MS, "the monotonic one": 0, "one set back": -LATE_MS}[
        clock
    ]
    steady = 0 if clock == "that of the wall" else 2 * LATE_MS // 1000
    sleeper = LogWriter(
        merged.log,
        "s",
        now_ms=lambda: time_ms(wall),
        monotonic=lambda: float(time_ms(steady)),
        pause=lambda _: None,
    )

    def slept(call: Call) -> None:
        if call.path != "_tandem/log/" + commit_path(1):
            return
        store.fault = lambda _: None
        asleep.append(True)
        for batch in range(4):
            merged.append(table((batch, "a", None)))
        write_checkpoint(merged.log.log, merged.log.snapshot(), now_ms=0)
        gone = range(4) if not left else range(1, 4)
        store.delete([f"_tandem/log/{commit_path(version)}" for version in gone])

    store.fault = slept
    assert sleeper.append(table((9, "s", None)), batch=1) == Appended(5)
    assert (9, "s", None) in merged.rows()
    assert f"_tandem/log/{commit_path(1)}" not in store.paths()


def test_a_checkpoint_that_fails_is_logged_and_no_append_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = in_memory()
    merged = Merged(store)

    def full(call: Call) -> None:
        if call.path.endswith(".checkpoint.parquet") and call.when == "before":
            raise StorageFull("no space is left", resource=call.path)

    store.fault = full
    with merged.writer as writer:
        for batch in range(CHECKPOINT_INTERVAL):
            writer.append(table((batch, "a", None)), batch=batch)
    assert len(merged.rows()) == CHECKPOINT_INTERVAL
    (line,) = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "_tandem/log: checkpoint failed" in line.getMessage()
    assert "no space is left" in line.getMessage()


def calls_of_an_append() -> int:
    """How many calls the second append of a writer makes."""
    calls: list[Call] = []
    store = in_memory()
    merged = Merged(store)
    merged.append(table((1, "a", None)))
    store.fault = calls.append
    merged.append(table((2, "b", None)))
    return len({call.number for call in calls})


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_batch_counts_once_whichever_call_kills_its_writer(when: str) -> None:
    outcomes = set()
    for nth in range(calls_of_an_append()):
        store = in_memory()
        merged = Merged(store)
        merged.append(table((1, "a", None)))
        store.fault = dies_at(nth, when)
        with pytest.raises(ProcessDied):
            merged.append(table((2, "b", None)), keys(1))
        merged.writer.close()
        store.fault = None
        done = merged.new_writer("w").append(table((2, "b", None)), keys(1), batch=2)
        outcomes.add(done.repeated)
        assert done.instant == 2
        assert batches(commits(merged)) == [1, 2]
        assert merged.rows() == [(2, "b", None)]
    assert outcomes == ({False} if when == "before" else {False, True})


@pytest.mark.parametrize("arrives", [True, False])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_the_answer_of_a_commit_may_be_lost(times: int, arrives: bool) -> None:
    store = in_memory()
    merged = Merged(store)
    lost: list[Call] = []

    def lose(call: Call) -> None:
        when = "after" if arrives else "before"
        if call.name == "put_if_absent" and call.when == when and len(lost) < times:
            lost.append(call)
            raise OutcomeUnknown("lost")

    store.fault = lose
    if times == 3 and not arrives:
        with pytest.raises(OutcomeUnknown, match="Repeat the batch under its number"):
            merged.append(table((1, "a", None)))
    else:
        merged.append(table((1, "a", None)))
    store.fault = None
    assert merged.writer.append(table((1, "a", None)), batch=1).instant == 1
    assert batches(commits(merged)) == [1]
    assert merged.rows() == [(1, "a", None)]


class LateStore(MemoryStore):
    """Puts of commits are on their way until `arrive`, and their answers lost."""

    late: list[tuple[str, bytes]] | None = None

    def put_if_absent(self, path: str, data: bytes) -> None:
        if self.late is None:
            super().put_if_absent(path, data)
        else:
            self.late.append((path, data))
            raise OutcomeUnknown("lost")

    def arrive(self) -> None:
        late, self.late = self.late or [], None
        for path, data in late:
            with suppress(AlreadyExists):
                super().put_if_absent(path, data)


@pytest.mark.parametrize("first", ["late", "again"])
def test_a_put_that_arrives_late_counts_once(first: str) -> None:
    store = LateStore()
    for path in (made := in_memory()).paths():
        store.put(path, made.get(path))
    merged = Merged(store)
    store.late = []
    with pytest.raises(OutcomeUnknown):
        merged.append(table((1, "a", None)))
    if first == "late":
        store.arrive()
        assert merged.new_writer("w").append(table((1, "a", None)), batch=1).repeated
    else:
        late, store.late = store.late, None
        assert not merged.new_writer("w").append(table((1, "a", None)), batch=1).repeated
        store.late = late
        store.arrive()
    assert batches(commits(merged)) == [1]
    assert merged.rows() == [(1, "a", None)]


# Sessions that a clean-up has rolled back


def roll_back(merged: Merged, session: str, uploads: int) -> None:
    log = merged.log.log
    snapshot = log.snapshot()
    info = commit_info("CLEAN", {}, now_ms=0, previous=snapshot, blind_append=False)
    actions: list[Action] = [info, Txn(ROLLBACK + session, uploads)]
    log.put_commit(snapshot.version + 1, actions, token=f"roll back {session} {uploads}")


def test_L2c_I41_a_session_that_was_rolled_back_uploads_its_block_again() -> None:
    store = in_memory()
    merged = Merged(store)
    merged.append(table((1, "a", None)))
    rolled_back: list[str] = []

    def clean(call: Call) -> None:
        if call.name == "open_output" and call.when == "after" and not rolled_back:
            rolled_back.append(call.path)
            session = call.path.split("/")[-3]
            roll_back(merged, session, 2)
            store.delete([call.path])

    store.fault = clean
    assert merged.append(table((2, "b", None))) == Appended(3)
    store.fault = None
    assert len(rolled_back) == 1
    assert merged.rows() == [(1, "a", None), (2, "b", None)]
    assert merged.append(table((3, "c", None))) == Appended(4)
    roll_back(merged, rolled_back[0].split("/")[-3], 3)
    assert merged.append(table((4, "d", None))) == Appended(6)
    assert len(merged.rows()) == 4


def test_a_rollback_of_another_session_is_none_of_this_one() -> None:
    store = in_memory()
    merged = Merged(store)
    roll_back(merged, "another", 99)
    assert merged.append(table((1, "a", None))) == Appended(2)
    assert len(block_files(store)) == 1


# Many writers


@pytest.mark.part(2)
@pytest.mark.parametrize("checkpoints", [False, True])
def test_writers_at_once_never_abort_and_lose_nothing(checkpoints: bool) -> None:
    """L12: no append makes another one fail; each keeps its place."""
    writers, each = 8, 6
    merged = Merged(in_memory())
    start = threading.Barrier(writers)

    def run(number: int) -> list[int]:
        writer = LogWriter(merged.log, f"w{number}", pause=lambda _: None)
        start.wait()
        instants = []
        for batch in range(each):
            rows = table((0, f"{number}-{batch}", None), (1 + number * each + batch, "own", None))
            done = writer.append(rows, batch=batch)
            assert done.instant is not None
            assert not done.repeated
            instants.append(done.instant)
            if checkpoints:
                write_checkpoint(merged.log.log, merged.log.snapshot(), now_ms=0)
        return instants

    with ThreadPoolExecutor(writers) as pool:
        found = list(pool.map(run, range(writers)))
    for instants in found:
        assert all(one < other for one, other in pairwise(instants))
    every = sorted(instant for instants in found for instant in instants)
    assert every == list(range(1, writers * each + 1))
    rows = {row[0]: row[1] for row in merged.rows()}
    assert sorted(rows) == list(range(writers * each + 1))
    last = max((instants[-1], number) for number, instants in enumerate(found))[1]
    assert rows[0] == f"{last}-{each - 1}"


def test_two_processes_of_one_name_append_each_batch_once() -> None:
    merged = Merged(in_memory())

    def run(value: str) -> list[bool]:
        writer = merged.new_writer("w")
        found = []
        for batch in range(8):
            done = writer.append(table((batch, value, None)), batch=batch)
            found.append(done.repeated)
        return found

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(run, ["a", "b"])
    assert [first + second for first, second in zip(one, other, strict=True)] == [1] * 8
    assert batches(commits(merged)) == list(range(8))


def test_a_writer_that_others_outrun_pauses_after_its_commits() -> None:
    pauses: list[float] = []
    merged = Merged(in_memory())
    writer = LogWriter(merged.log, "polite", pause=pauses.append)
    for batch in range(5):
        writer.append(table((batch, "a", None)), batch=batch)
    assert len(pauses) <= 4
    assert all(pause > 0 for pause in pauses)
