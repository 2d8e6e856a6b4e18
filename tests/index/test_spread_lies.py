"""An executor that drops, doubles, mixes or miscounts is caught by the check of its reply: the
files are left as they are, and every number is right. Each lie is planted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from index.spread_index import GROUP, ROWS, Lake, Spread, eager, spread, until
from support.some import few
from tandem.errors import InvalidSpec, InvalidStatement, StorageError
from tandem.index import Query, open_index
from tandem.index.narrowing import GroupMatches, NeededGroups
from tandem.index.server.executor import (
    FILES,
    MATCHES,
    ExecutorService,
    NarrowQuestion,
    NarrowReply,
    believed,
    digest,
    matches_from,
    matches_table,
)
from tandem.index.server.messages import VersionOf

Reply = tuple[NarrowReply, pa.Table]
WHERE = "id < 1234"


def column(table: pa.Table, name: str, change: Callable[[list[Any]], list[Any]]) -> pa.Table:
    field = MATCHES.field(name)
    values = pa.array(change(table[name].to_pylist()), field.type)
    return table.set_column(MATCHES.get_field_index(name), field, values)


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
    "other files": said(asked="0" * 64),
    "no column": lambda reply, table: (reply, table.drop_columns(["rows"])),
    "another type": lambda reply, table: (
        reply, table.set_column(1, "rows", pa.array([1] * table.num_rows)),
    ),
    "no number of a file": changed("file", lambda values: [None, *values[1:]]),
    "facts of which there are none": changed("matches", lambda values: [None, *values[1:]]),
    "rows of which nothing matches": changed("rows", lambda values: [*values[:-1], None]),
    "a row group that is not there": changed(
        "matches", lambda values: [[*values[0], 1], *values[1:]]
    ),
    "a row group too many": lambda reply, table: changed(
        "rows", lambda values: [[*each, 1] for each in values]
    )(*changed("matches", lambda values: [[*each, 0] for each in values])(reply, table)),
    "no row groups": lambda reply, table: changed("rows", lambda values: [[]] * len(values))(
        *changed("matches", lambda values: [[]] * len(values))(reply, table)
    ),
    "a row group without rows": changed(
        "rows", lambda values: [[None, *values[0][1:]], *values[1:]]
    ),
    "a row group without a match": changed("matches", lambda values: [[None] * 5, *values[1:]]),
    "a match that is none": changed("matches", lambda values: [[3] * 5, *values[1:]]),
    "a negative match": changed("matches", lambda values: [[-1] * 5, *values[1:]]),
    "more rows than there are": changed("rows", lambda values: [[10 * ROWS] * 5] * len(values)),
    "fewer rows than there are": changed("rows", lambda values: [[1] * 5] * len(values)),
    "a negative number of rows": changed(
        "rows", lambda values: [[-5, 2 * GROUP + 5, GROUP, GROUP, GROUP]] * len(values)
    ),
    "rows of no number": changed("rows", lambda values: [[1 << 62] * 5] * len(values)),
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
    service = ExecutorService({"lake": lambda: store}, reply_bytes=1 << 20, facts=eager)
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

    monkeypatch.setattr("tandem.index.server.executor.narrowed", fail)
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
        ExecutorService({"lake": lambda: store}, reply_bytes=limit, facts=eager)
        for limit in (100, 1 << 20)
    )
    asked, files = question(lake)
    for service, expected in ((small, [None] * 3), (whole, [None, None, [0, 1, 2]])):
        reply, table = service.narrow(asked, files)
        found = believed(asked, files, reply, table)
        assert NeededGroups.of(found, np.zeros(3, np.int64)).groups.to_pylist() == expected
        service.close()


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


@settings(max_examples=few(50, 4_000))
@given(st.data())
def test_what_is_needed_is_what_the_row_groups_say(data: st.DataObject) -> None:
    """Against the rules one by one, for each file, in plain Python."""
    each = st.one_of(st.none(), st.lists(st.tuples(st.integers(0, 9), st.integers(0, 2))))
    files = data.draw(st.lists(each, max_size=4))
    dead = data.draw(st.lists(st.sampled_from([0, 5]), min_size=len(files), max_size=len(files)))
    rows, matches = (
        pa.array([None if file is None else [pair[at] for pair in file] for file in files], type_)
        for at, type_ in enumerate((pa.list_(pa.int64()), pa.list_(pa.int8())))
    )
    found = NeededGroups.of(GroupMatches(rows, matches), np.array(dead, np.int64))
    for at, (file, hidden) in enumerate(zip(files, dead, strict=True)):
        groups = file or []
        may = [number for number, (_, match) in enumerate(groups) if match]
        counted = [number for number in may if groups[number][1] == 2 and not hidden]
        left = [number for number in may if number not in counted]
        assert found.needed[at] == (file is None or bool(may))
        assert found.open[at] == (file is None or bool(left))
        assert found.certain[at] == (file is not None and all(match != 1 for _, match in groups))
        assert found.counted[at] == sum(groups[number][0] for number in counted)
        for lists, expected in ((found.groups, may), (found.rest, left)):
            whole = file is None or len(expected) == len(groups)
            assert lists[at].as_py() == (None if whole else expected)


def test_a_reply_is_what_was_found() -> None:
    found = GroupMatches(
        pa.array([[3, 4], None], pa.list_(pa.int64())),
        pa.array([[0, 2], None], pa.list_(pa.int8())),
    )
    again = matches_from(matches_table(found))
    assert (again.rows, again.matches) == (found.rows, found.matches)


def test_Xa_a_reply_is_of_one_question_alone(lake: Lake) -> None:
    asked, files = question(lake)
    others = [
        asked.model_copy(update={"table_id": "another"}),
        asked.model_copy(update={"where": "id < 5"}),
        asked.model_copy(update={"shards": ("1",)}),
        asked.model_copy(update={"of": asked.of.model_copy(update={"version": 99})}),
    ]
    assert digest(asked, files) not in [digest(each, files) for each in others]
    assert digest(asked, files) != digest(asked, files.slice(1))


def test_files_of_a_question_are_checked(tmp_path: Path, lake: Lake) -> None:
    from tandem.index.server.executor import body, files_of

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
