"""An executor that drops, doubles, mixes or miscounts is caught by the check of its reply: the
files are left as they are, and every number is right. Each lie is planted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.spread_index import GROUP, ROWS, Lake, Spread, spread, until
from support.some import few
from tandem.errors import InvalidSpec, InvalidStatement, StorageError
from tandem.index import Query, open_index
from tandem.index.narrowing import GROUPS, NeededGroups
from tandem.index.server.executors.asking import believed
from tandem.index.server.executors.executor import ExecutorService
from tandem.index.server.executors.slot_messages import (
    FILES,
    NEEDED,
    NarrowQuestion,
    NarrowReply,
    digest,
    needed_from,
    needed_table,
)
from tandem.index.server.messages import VersionOf

Reply = tuple[NarrowReply, pa.Table]
WHERE = "id < 1234"


def column(table: pa.Table, name: str, change: Callable[[list[Any]], list[Any]]) -> pa.Table:
    field = NEEDED.field(name)
    values = pa.array(change(table[name].to_pylist()), field.type)
    return table.set_column(NEEDED.get_field_index(name), field, values)


def changed(name: str, change: Callable[[list[Any]], list[Any]]) -> Callable[..., Reply]:
    return lambda reply, table: (reply, column(table, name, change))


def said(**fields: Any) -> Callable[..., Reply]:
    return lambda reply, table: (reply.model_copy(update=fields), table)


def renumbered(rows: list[int]) -> Callable[..., Reply]:
    """Other files, under numbers that are right."""

    def lie(reply: NarrowReply, table: pa.Table) -> Reply:
        found = table.take(pa.array(rows))
        return reply, column(found, "file", lambda values: list(range(len(values))))

    return lie


LIES: dict[str, Callable[[NarrowReply, pa.Table], Reply]] = {
    "drops a file": lambda reply, table: (reply, table.slice(1)),
    "drops the last file": lambda reply, table: (reply, table.slice(0, table.num_rows - 1)),
    "drops a file and numbers the others": renumbered([1, 2]),
    "drops all": lambda reply, table: (reply, table.slice(0, 0)),
    "doubles a file": lambda reply, table: (reply, pa.concat_tables([table, table.slice(0, 1)])),
    "doubles one and drops one": changed("file", lambda values: [values[0], *values[:-1]]),
    "another order": lambda reply, table: (reply, table.take(pa.array([1, 0, 2]))),
    "another version": said(version=99),
    "another table": said(table_id="another"),
    "other files": said(asked="0" * 64),
    "no column": lambda reply, table: (reply, table.drop_columns(["rest"])),
    "another type": lambda reply, table: (
        reply, table.set_column(6, "open", pa.array([1] * table.num_rows)),
    ),
    "nulls": changed("certain", lambda values: [None, *values[1:]]),
    "a file without row groups is needed": changed("groups", lambda values: [[]] * len(values)),
    "a row group that is not there": changed("groups", lambda values: [[0, 99], *values[1:]]),
    "a negative row group": changed("groups", lambda values: [[-1, 0], *values[1:]]),
    "a row group twice": changed("groups", lambda values: [[1, 1], *values[1:]]),
    "row groups out of order": changed("groups", lambda values: [[2, 1], *values[1:]]),
    "a row group without a number": changed("groups", lambda values: [[None], *values[1:]]),
    "left and not needed": changed("rest", lambda values: [[4], *values[1:]]),
    "not needed but with row groups": changed("needed", lambda values: [False] * len(values)),
    "all left and counted": changed("rest", lambda values: [None] * len(values)),
    "nothing left of what is open": changed("rest", lambda values: [[]] * len(values)),
    "closed though some is left": changed("open", lambda values: [False] * len(values)),
    "more rows than there are": changed("counted", lambda values: [10 * ROWS] * len(values)),
    "a negative number of rows": changed("counted", lambda values: [-5] * len(values)),
    "fewer rows than all row groups have": changed(
        "counted", lambda values: [max(each - 1, 0) for each in values]
    ),
    "a file of other rows": changed("file_rows", lambda values: [ROWS + 1] * len(values)),
    "no row groups": changed("group_counts", lambda values: [0] * len(values)),
    "facts of which there are none": changed("file_rows", lambda values: [-1] * len(values)),
    "rows of no number": changed("file_rows", lambda values: [-7] * len(values)),
}  # fmt: skip


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    return Lake(tmp_path_factory.mktemp("lies"), [3])


@pytest.fixture(scope="module")
def server(lake: Lake) -> Iterator[Spread]:
    with spread({"lake": lake.location}, 1) as found:
        assert found.files(WHERE) == 3
        yield found


@pytest.mark.part(3)
@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_Xa_a_lie_is_caught_and_counted_and_changes_no_number(
    server: Spread, monkeypatch: pytest.MonkeyPatch, lie: Callable[..., Reply]
) -> None:
    original = ExecutorService.narrow
    monkeypatch.setattr(
        ExecutorService, "narrow", lambda self, asked, files: lie(*original(self, asked, files))
    )
    me = server.executor(0).id
    before = server.coordinator.refused[me]
    found = server.index().certain_count(Query(WHERE))
    assert server.coordinator.refused[me] == before + 1
    assert found.rows == 0
    assert found.rest.groups.to_pylist() == [None] * 3
    assert server.index().count(Query(WHERE)) == 1234
    assert sorted(server.index().reader(Query(WHERE)).read_all()["id"].to_pylist()) == list(
        range(1234)
    )
    monkeypatch.undo()
    # It is not left out for it.
    assert server.index().certain_count(Query(WHERE)).rows == 1200


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_no_lie_is_believed(lake: Lake, lie: Callable[..., Reply]) -> None:
    store = open_index(lake.location).store
    service = ExecutorService({"lake": lambda: store}, reply_bytes=1 << 20, facts=_eager)
    asked, files = question(lake)
    reply, table = service.narrow(asked, files)
    service.close()
    believed(asked, files, reply, table)
    with pytest.raises(ValueError):  # noqa: PT011 - each lie has words of its own
        believed(asked, files, *lie(reply, table))


@pytest.mark.parametrize("problem", [InvalidSpec, InvalidStatement, StorageError, RuntimeError])
def test_an_executor_that_raises_changes_no_number(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, problem: type[Exception]
) -> None:
    def fail(*_: Any) -> None:
        raise problem("planted")

    with spread({"lake": lake.location}, 1) as server:
        monkeypatch.setattr(ExecutorService, "narrow", fail)
        assert server.files("id = 7") == 3
        assert server.index().count(Query(WHERE)) == 1234


def test_a_shard_that_cannot_be_narrowed_is_left_as_it_is(
    server: Spread, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr("tandem.index.server.executors.executor.narrowed", fail)
    assert server.files("id = 7") == 3
    assert server.live == {0}
    monkeypatch.undo()
    assert server.files("id = 7") == 1


def test_after_a_lie_the_shard_is_loaded_again(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    original = ExecutorService.narrow
    with spread({"lake": lake.location}, 1) as server:
        assert server.files("id = 7") == 1
        assert server.files("id = 7") == 1
        assert server.shown()["0"].hits == 1
        lie = LIES["drops a file"]
        monkeypatch.setattr(
            ExecutorService, "narrow", lambda self, asked, files: lie(*original(self, asked, files))
        )
        assert server.files("id = 7") == 3
        monkeypatch.undo()
        until(lambda: not server.shown(), "it is still held")
        assert server.files("id = 7") == 1


def test_a_reply_that_would_be_too_large_is_not_made(lake: Lake) -> None:
    store = open_index(lake.location).store
    small, whole = (
        ExecutorService({"lake": lambda: store}, reply_bytes=limit, facts=_eager)
        for limit in (100, 1 << 20)
    )
    asked, files = question(lake)
    for service, expected in ((small, [None] * 3), (whole, [None, None, [0, 1, 2]])):
        reply, table = service.narrow(asked, files)
        found = believed(asked, files, reply, table)
        assert found.groups.to_pylist() == expected
        service.close()


def _eager(store: Any) -> Any:
    from index.spread_index import eager

    return eager(store)


def question(lake: Lake) -> tuple[NarrowQuestion, pa.Table]:
    view = open_index(lake.location).view()
    of = VersionOf.of(view.head)
    asked = NarrowQuestion(
        table="lake", table_id=of.table_id, shards=("0",), of=of, where=WHERE, budget_s=60
    )
    found = pa.concat_tables([part.files for part in view.parts])
    count = found.num_rows
    columns = [
        pa.array([0] * count, pa.int32()), found["path"], found["size"],
        pa.array([ROWS] * count, pa.int64()), pa.array([0] * count, pa.int64()),
        pa.nulls(count, FILES.field("partition_values").type),
    ]  # fmt: skip
    return asked, pa.table(columns, schema=FILES)


@pytest.fixture(scope="module")
def asked(lake: Lake) -> tuple[NarrowQuestion, pa.Table]:
    return question(lake)


LISTS = st.one_of(st.none(), st.lists(st.integers(0, 4), unique=True, max_size=5).map(sorted))


@settings(max_examples=few(50, 4_000))
@given(st.data())
def test_what_is_believed_adds_up(
    asked: tuple[NarrowQuestion, pa.Table], data: st.DataObject
) -> None:
    """Against the rules one by one, for each file, in plain Python."""
    question, files = asked
    count, dead = 3, data.draw(st.sampled_from([0, 5]))
    files = files.set_column(4, FILES.field("dead"), pa.array([dead] * count, pa.int64()))
    groups = data.draw(st.lists(LISTS, min_size=count, max_size=count))
    rest = data.draw(st.lists(LISTS, min_size=count, max_size=count))
    counted = data.draw(
        st.lists(st.sampled_from([0, GROUP, ROWS, ROWS + 1]), min_size=count, max_size=count)
    )
    known = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    found = NeededGroups(
        np.array([each is None or bool(each) for each in groups]),
        np.zeros(count, bool),
        pa.array(groups, GROUPS),
        np.array(counted),
        pa.array(rest, GROUPS),
        np.array([each is None or bool(each) for each in rest]),
        np.where(known, ROWS, -1),
        np.where(known, 5, -1),
    )
    good = all(map(adds_up, groups, rest, counted, known, [dead] * count))
    reply = NarrowReply(
        table_id=question.table_id, version=question.of.version, asked=digest(question, files)
    )
    try:
        believed(question, files, reply, needed_table(found))
    except ValueError:
        assert not good
    else:
        assert good


def adds_up(
    groups: list[int] | None, rest: list[int] | None, counted: int, known: bool, dead: int
) -> bool:
    if not known:
        return groups is None and rest is None and counted == 0
    needed = set(range(5)) if groups is None else set(groups)
    left = set(range(5)) if rest is None else set(rest)
    taken = needed - left
    if not left <= needed or counted > ROWS or (dead and counted):
        return False
    if not taken:
        return counted == 0
    return counted == ROWS if len(taken) == 5 else True


def test_no_row_is_counted_where_a_vector_may_hide_it(
    asked: tuple[NarrowQuestion, pa.Table],
) -> None:
    question, files = asked
    found = NeededGroups(
        np.ones(3, bool), np.zeros(3, bool), pa.nulls(3, GROUPS), np.full(3, GROUP),
        pa.array([[1, 2, 3, 4]] * 3, GROUPS), np.ones(3, bool), np.full(3, ROWS), np.full(3, 5),
    )  # fmt: skip
    for dead in (0, 1):
        column = pa.array([0, dead, 0], pa.int64())
        with_dead = files.set_column(4, FILES.field("dead"), column)
        reply = NarrowReply(
            table_id=question.table_id,
            version=question.of.version,
            asked=digest(question, with_dead),
        )
        if dead:
            with pytest.raises(ValueError, match="vector"):
                believed(question, with_dead, reply, needed_table(found))
        else:
            believed(question, with_dead, reply, needed_table(found))


def test_a_reply_is_what_was_found() -> None:
    found = NeededGroups.every(2)
    found = replace(found, groups=pa.array([[1], None], GROUPS), counted=np.array([3, 0]))
    again = needed_from(needed_table(found))
    for name, value in vars(found).items():
        assert list(getattr(again, name)) == list(value), name


def test_files_of_a_question_are_checked(tmp_path: Path, lake: Lake) -> None:
    from tandem.index.server.executors.slot_messages import body, files_of

    asked, files = question(lake)
    assert files_of(body(asked, files)).equals(files)
    whole = body(asked, files)
    bad = {
        "nothing": b"{}", "no arrow": b"{}\nxyz", "cut": whole[:-100],
        "no column": body(asked, files.drop_columns(["dead"])),
        "nulls": body(asked, files.set_column(1, "path", pa.nulls(3, pa.string()))),
    }  # fmt: skip
    for name, data in bad.items():
        with pytest.raises(InvalidSpec, match="cannot be read"):
            files_of(data)
        assert name
    service = ExecutorService({"lake": lambda: open_index(lake.location).store})
    for call, data in [
        ("Drop", b"{}"), ("Narrow", b"{}"), ("Narrow", b""),
        ("Narrow", body(asked.model_copy(update={"where": ""}), files)),
        ("Narrow", body(asked.model_copy(update={"shards": ()}), files)),
        ("Narrow", body(asked.model_copy(update={"where": "nope = 1"}), files)),
        ("Narrow", body(asked.model_copy(update={"table": "other"}), files)),
    ]:  # fmt: skip
        with pytest.raises(Exception, match=r"call|file|narrow|column|table|required|Field"):
            service.ask(call, data)
    assert service.ask("Narrow", body(asked, files)).tables[0].num_rows == 3
    service.close()
