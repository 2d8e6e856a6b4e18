"""The writers of `format("tandem")` in this process: a batch counts once, whatever dies or gets
lost. `test_spark_write` has streams of Spark."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from mergelog.lake import Merged, in_memory
from mergelog.test_log_writer import batches, block_files, commits, roll_back
from support.lake.faults import ProcessDied
from support.lake.memory_store import Call, MemoryStore
from support.some import some
from tandem.delta.actions import AddFile
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.snapshot import commit_info
from tandem.delta.schema import Field, PrimitiveType, to_delta_json
from tandem.delta.schema import StructType as DeltaStruct
from tandem.errors import (
    CommitConflict,
    DuplicateKeys,
    InvalidSpec,
    NotMergeOnRead,
    OutcomeUnknown,
    TandemError,
)
from tandem.mergelog.log_table import MergeLog
from tandem.spark import connector as writer_
from tandem.spark.connector import StreamWriter, TandemSource, TaskBlocks
from tandem.spark.connector_options import write_options

SCHEMA = "k bigint, v string, p string"
MARKED = SCHEMA + ", gone boolean"
Rows = Sequence[tuple[Any, ...]]


def spark_type(text: str) -> StructType:
    """`k bigint, v string` without a session."""
    return StructType.fromJson(
        {
            "type": "struct",
            "fields": [
                {"name": name, "type": type_, "nullable": True, "metadata": {}}
                for name, type_ in (
                    part.replace("bigint", "long").split() for part in text.split(", ")
                )
            ],
        }
    )


class Sink:
    """A stream into a log in memory: batches of tasks of rows, as Spark writes them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ordering: str = "") -> None:
        self.store = in_memory()
        self.merged = Merged(self.store, ordering=ordering)
        monkeypatch.setattr(writer_, "open_log", lambda *_: self.merged.log)

    def begin(self, schema: str = SCHEMA, **options: str) -> StreamWriter:
        asked = write_options({"path": "/t", "writer": "w", **options}, stream=True)
        found: StreamWriter = pickle.loads(pickle.dumps(StreamWriter(asked, spark_type(schema))))
        return found

    def write(
        self, tasks: Sequence[Rows], schema: str = SCHEMA, **options: str
    ) -> list[TaskBlocks | None]:
        """What the tasks answer."""
        writer = self.begin(schema, **options)
        arrow = to_arrow_schema(spark_type(schema), timezone="Europe/Berlin")
        found: list[TaskBlocks | None] = []
        for rows in tasks:
            table = pa.Table.from_pylist(
                [dict(zip(arrow.names, row, strict=True)) for row in rows], arrow
            )
            answer = writer.write(iter(table.to_batches(max_chunksize=2)))
            found.append(pickle.loads(pickle.dumps(answer)))
        return found

    def batch(self, number: int, *tasks: Rows, schema: str = SCHEMA, **options: str) -> None:
        self.commit(number, self.write(tasks, schema, **options), schema, **options)

    def commit(
        self,
        number: int,
        answers: Sequence[TaskBlocks | None],
        schema: str = SCHEMA,
        **options: str,
    ) -> None:
        self.begin(schema, **options).commit(list(answers), number)

    def rows(self) -> list[tuple[Any, ...]]:
        return self.merged.rows()

    def batches(self) -> list[int]:
        return batches(commits(self.merged))


@pytest.fixture
def sink(monkeypatch: pytest.MonkeyPatch) -> Sink:
    return Sink(monkeypatch)


@pytest.fixture
def ordered(monkeypatch: pytest.MonkeyPatch) -> Sink:
    return Sink(monkeypatch, "v")


A, B, C = (1, "a", "x"), (2, "b", None), (3, "c", "x")


def test_the_blocks_of_all_tasks_are_one_instant(sink: Sink) -> None:
    sink.batch(0, [B, A], [], [C])
    assert sink.rows() == [A, B, C]
    (commit,) = commits(sink.merged)[1:]
    assert sum(isinstance(action, AddFile) for action in commit.actions) == 2
    sink.batch(1, [(1, "A", None)])
    assert sink.rows() == [(1, "A", None), B, C]
    assert sink.batches() == [0, 1]


def test_a_batch_that_comes_again_counts_once(sink: Sink) -> None:
    sink.batch(0, [A])
    sink.batch(1, [B])
    for number, other in ((1, [B]), (0, [A])):
        sink.batch(number, other)
    answers = sink.write([[C]])
    sink.commit(2, answers)
    sink.commit(2, answers)
    assert sink.batches() == [0, 1, 2]
    assert sink.rows() == [A, B, C]


def test_a_batch_without_rows_leaves_no_trace(sink: Sink) -> None:
    before = sink.store.paths()
    sink.batch(0)
    sink.batch(1, [], [])
    sink.commit(2, [None])
    assert sink.store.paths() == before
    sink.batch(3, [A])
    assert sink.rows() == [A]


def test_marked_rows_are_deletes_by_key(sink: Sink) -> None:
    sink.batch(0, [A, B, C])
    # Other columns of a delete do not matter.
    tasks: list[Rows] = [[(1, None, None, True), (2, "B", "y", False)], [(3, "z", "z", True)]]
    sink.batch(1, *tasks, schema=MARKED, deletes="gone")
    assert sink.rows() == [(2, "B", "y")]


def test_a_delete_has_a_value_of_the_ordering_column(ordered: Sink) -> None:
    ordered.batch(0, [(1, "e", None, False), (2, "e", None, False)], schema=MARKED, deletes="gone")
    ordered.batch(1, [(1, "a", None, True), (2, "f", None, True)], schema=MARKED, deletes="gone")
    assert ordered.rows() == [(1, "e", None)]


DUPLICATES: dict[str, tuple[Rows, ...]] = {
    "in one task": ([(1, "a", None), (2, "b", None), (1, "c", None)],),
    "beyond a block of a task": ([(1, "a", None), (2, "b", None), (3, "c", None), (1, "d", None)],),
    "in two tasks": ([(1, "a", None)], [(2, "b", None)], [(1, "c", None)]),
}


@pytest.mark.parametrize("case", DUPLICATES)
def test_a_key_that_occurs_twice_is_refused_with_examples(
    sink: Sink, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setattr(writer_, "BLOCK_BYTES", 1)
    with pytest.raises(DuplicateKeys, match=r"k: several rows.*k = 1;.*one row of each key"):
        sink.batch(0, *DUPLICATES[case])
    assert sink.batches() == []
    sink.batch(0, [A], [B])
    assert sink.rows() == [A, B]


@pytest.mark.parametrize("case", DUPLICATES)
def test_the_ordering_column_decides_within_a_batch(
    ordered: Sink, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setattr(writer_, "BLOCK_BYTES", 1)
    rows = [row for task in DUPLICATES[case] for row in task]
    ordered.batch(0, *DUPLICATES[case])
    assert ordered.rows() == sorted(dict(sorted((row[0], row) for row in rows)).values())
    equal = [[(row[0], "same", None) for row in task] for task in DUPLICATES[case]]
    with pytest.raises(DuplicateKeys, match="differ in v"):
        ordered.batch(1, *equal)
    # Of a key whose greatest row is the only one, equal rows do not matter.
    ordered.batch(1, *equal, [(1, "zzz", None)])
    assert (1, "zzz", None) in ordered.rows()


def test_keys_of_a_large_batch_are_compared_in_passes(
    sink: Sink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tandem.mergelog.writer.MEMORY", 500)
    tasks = [[(10 * task + at, "a", None) for at in range(10)] for task in range(4)]
    sink.batch(0, *tasks)
    assert len(sink.rows()) == 40
    with pytest.raises(DuplicateKeys, match="k = 25"):
        sink.batch(1, *tasks, [(25, "b", None)])


def kill_at(when: str, nth: int) -> Callable[[Call], None]:
    seen: list[int] = []

    def kill(call: Call) -> None:
        if call.when == when:
            seen.append(call.number)
            if len(seen) > nth:
                raise ProcessDied

    return kill


def calls_of_a_batch(monkeypatch: pytest.MonkeyPatch, when: str) -> int:
    calls: list[Call] = []
    sink = Sink(monkeypatch)
    sink.batch(0, [A])
    sink.store.fault = calls.append
    sink.batch(1, [B], [C])
    return sum(call.when == when for call in calls)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_batch_counts_once_whichever_call_kills_task_or_driver(
    monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    count = calls_of_a_batch(monkeypatch, when)
    assert count > 10
    # The last calls are those of the commit.
    for nth in sorted({*some(range(count), every=4), *range(count - 3, count)}):
        sink = Sink(monkeypatch)
        sink.batch(0, [A])
        sink.store.fault = kill_at(when, nth)
        with pytest.raises(ProcessDied):
            sink.batch(1, [B], [C])
        sink.store.fault = None
        sink.batch(1, [B], [C])
        assert sink.batches() == [0, 1]
        assert sink.rows() == [A, B, C]


@pytest.mark.parametrize("arrives", [True, False])
@pytest.mark.parametrize("times", [1, 3])
def test_the_answer_of_a_commit_may_be_lost(sink: Sink, times: int, arrives: bool) -> None:
    lost: list[Call] = []

    def lose(call: Call) -> None:
        when = "after" if arrives else "before"
        if call.name == "put_if_absent" and call.when == when and len(lost) < times:
            lost.append(call)
            raise OutcomeUnknown("lost")

    answers = sink.write([[A], [B]])
    sink.store.fault = lose
    if times == 3 and not arrives:
        with pytest.raises(OutcomeUnknown, match="Repeat the batch"):
            sink.commit(0, answers)
        sink.begin().abort(list(answers), 0)
    else:
        sink.commit(0, answers)
    sink.store.fault = None
    assert len(block_files(sink.store)) == 2
    sink.batch(0, [A], [B])
    assert sink.batches() == [0]
    assert sink.rows() == [A, B]


def test_an_abort_deletes_nothing(sink: Sink) -> None:
    answers = sink.write([[A]])
    sink.commit(0, answers)
    sink.begin().abort([*answers, None], 0)
    assert sink.rows() == [A]


WRONG: dict[str, tuple[str, dict[str, str], str]] = {
    "unknown column": ("k bigint, w string", {}, "w"),
    "no key": ("v string", {}, "k"),
    "wrong type": ("k string", {}, "k"),
    "our own column": ("k bigint, __tandem_deleted boolean", {}, "__tandem_deleted"),
    "no marker": (SCHEMA, {"deletes": "gone"}, "deletes"),
    "marker of another type": ("k bigint, gone string", {"deletes": "gone"}, "deletes"),
    "a column as marker": (SCHEMA, {"deletes": "v"}, "deletes"),
    "misspelled": (SCHEMA, {"delete": "gone"}, "delete"),
    "a batch of a stream": (SCHEMA, {"batch": "1"}, "batch"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_streams_are_refused_before_a_task_starts(sink: Sink, case: str) -> None:
    schema, options, field = WRONG[case]
    with pytest.raises(InvalidSpec) as caught:
        sink.begin(schema, **options)
    assert caught.value.field == field
    assert not block_files(sink.store)


def test_wrong_rows_are_refused_by_their_task(sink: Sink) -> None:
    with pytest.raises(InvalidSpec, match="a key is NULL"):
        sink.write([[(None, "a", None)]])
    with pytest.raises(InvalidSpec, match=r"deletes.*NULL"):
        sink.write([[(1, "a", None, None)]], MARKED, deletes="gone")
    assert not block_files(sink.store)


def test_blocks_for_other_columns_are_refused_and_the_batch_repeated(sink: Sink) -> None:
    answers = sink.write([[A]])
    log = sink.merged.log.base
    snapshot = log.snapshot()
    wider = DeltaStruct((*snapshot.schema.fields, Field("n", PrimitiveType("long"))))
    info = commit_info("ADD COLUMNS", {}, now_ms=0, previous=snapshot, blind_append=False)
    metadata = replace(snapshot.metadata, schema_string=to_delta_json(wider))
    log.put_commit(snapshot.version + 1, [info, metadata], token="wider")
    with pytest.raises(CommitConflict, match=r"columns .* have changed.*Repeat the batch"):
        sink.commit(0, answers)
    assert sink.batches() == []
    sink.batch(0, [A])
    assert sink.rows() == [(*A, None)]


def test_blocks_that_cleaning_took_for_orphans_are_refused(sink: Sink) -> None:
    answers = sink.write([[A]])
    (answer,) = answers
    assert answer is not None
    roll_back(sink.merged, answer.parts[0].session, 1)
    with pytest.raises(CommitConflict, match="a dead writer"):
        sink.commit(0, answers)
    sink.batch(0, [A])
    assert sink.rows() == [A]


def test_a_table_without_a_log_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    store: MemoryStore = in_memory()
    monkeypatch.setattr(writer_, "open_log", lambda *_: MergeLog(DeltaLog(store)))
    with pytest.raises(NotMergeOnRead):
        StreamWriter(write_options({"path": "/t"}, stream=True), spark_type(SCHEMA))


SINGLE: dict[str, tuple[dict[str, str], bool, str]] = {
    "no writer": ({"batch": "1"}, False, "writer"),
    "no batch": ({"writer": "w"}, False, "batch"),
    "a batch beyond 64 bits": ({"writer": "w", "batch": str(2**63)}, False, "batch"),
    "overwrite": ({"writer": "w", "batch": "1"}, True, "mode"),
}


@pytest.mark.parametrize("case", SINGLE)
def test_a_write_that_is_no_stream_needs_a_writer_and_a_batch(case: str) -> None:
    options, overwrite, field = SINGLE[case]
    with pytest.raises(TandemError) as caught:
        TandemSource({"path": "/t", **options}).writer(spark_type(SCHEMA), overwrite)
    assert caught.value.field == field
