"""Tasks share an answer: whichever answers each of them, they have every file of one version once,
and no process has to hold all of them."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import example, given
from hypothesis import strategies as st

from index.clock import Clock
from index.test_server import TOKEN, Served, root, rows, served
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.snapshot import Snapshot
from tandem.errors import InvalidSpec, TableReplaced, Unreachable
from tandem.index import Query, TableIndex, open_index
from tandem.index.answers import FILE_BYTES, MOST, Cut, PathRange, Portion, Portions, portions_of
from tandem.index.library import IndexReader
from tandem.index.server import client as client_
from tandem.index.server import messages
from tandem.index.server.calls import AnswerFiles
from tandem.index.server.client import EveryFile, Fallback, ServerAddress
from tandem.index.server.messages import MAX_PATH
from tandem.index.server.transport import Connection
from tandem.index.table import FollowedTable
from tandem.spark import indexed_tasks
from tandem.spark.indexed_tasks import (
    IndexSource,
    PlannedRead,
    PortionsReader,
    TaskPortion,
    opened,
)
from tandem.storage import open_store

__all__ = ["root", "served"]

EACH = Cut(tasks=1_000, most_bytes=1)
"""A portion for each file."""


def cut(paths: list[str], sizes: list[int], how: Cut) -> Portions:
    files = pa.table({"path": pa.array(paths, pa.string()), "size": pa.array(sizes, pa.int64())})
    return portions_of(None, files, how)  # type: ignore[arg-type]


def tasks(found: Portions) -> list[Portion]:
    return Portions.cut_at(found.firsts, found.parts)


NAMES = st.text(st.sampled_from("ab/%é\U0001f600"), max_size=4)
SIZES = st.sampled_from([0, 1, FILE_BYTES, 200 << 20, 1 << 30, -5])


@given(
    st.lists(st.tuples(NAMES, SIZES), max_size=30),
    st.lists(NAMES, max_size=5),
    st.integers(1, 40),
    st.sampled_from([64 << 20, 1 << 40]),
    st.integers(0, 20),
)
@example([("a", 2**63 - 1)] * 3, [], 1, 4 << 20, 7)
def test_every_row_group_is_in_one_portion(
    files: list[tuple[str, int]], others: list[str], at_once: int, most: int, groups: int
) -> None:
    """Files that the answer left out are so, too."""
    found = cut([path for path, _ in files], [size for _, size in files], Cut(at_once, most))
    assert found.splits == len(files)
    assert list(found.firsts) == sorted(set(found.firsts), key=str.encode)
    portions = tasks(found)
    assert len(portions) <= 5 * MOST
    names = pa.chunked_array([[path for path, _ in files] + others], pa.string())
    seen: list[Counter[int]] = [Counter() for _ in range(len(names))]
    for portion in portions:
        for at in np.flatnonzero(portion.paths.mask(names)):
            seen[at].update(portion.groups(groups))
    expected = Counter(range(groups)) if files else Counter()
    assert seen == [expected] * len(names)


def test_a_small_answer_is_cut_for_all_tasks_and_a_large_one_by_bytes() -> None:
    paths = [f"p{n:06}" for n in range(6_000)]
    assert len(tasks(cut(paths[:8], [64 << 20] * 8, Cut(4)))) == 4
    assert len(tasks(cut(paths[:8], [1_000] * 8, Cut(4)))) <= 3, "less is not worth a task"
    many = tasks(cut(paths, [1 << 20] * 6_000, Cut(4)))
    assert 90 <= len(many) <= 100, "12 GB with what opening costs"
    one = tasks(cut(["big"], [1 << 30], Cut(4)))
    assert [portion.groups(8) for portion in one] == [range(n, n + 1) for n in range(8)]


def test_a_driver_can_hold_the_portions_of_any_answer() -> None:
    paths = [f"p{n:06}" for n in range(100_000)]
    found = cut(paths, [1 << 45] * len(paths), Cut(4))
    assert sum(found.parts) <= 100_000
    assert len(found.firsts) <= 100_000


def every_way(served: Served) -> list[IndexReader]:
    log = DeltaLog(open_store(served.root.as_uri()))
    return [served.index(), open_index(str(served.root)), EveryFile(log)]


def named(found: pa.Table) -> list[str]:
    return sorted(found["path"].to_pylist())


def test_Xa_portions_answered_in_any_way_have_all_files_once(served: Served) -> None:
    ways, chance = every_way(served), random.Random(1)
    for text in ("", "id < 25", "half > 3"):
        for planner in ways:
            found = planner.portions(EACH, Query(text))
            needed = named(ways[1].splits(Query(text)).files)
            for _ in range(3):
                got: list[str] = []
                for portion in tasks(found):
                    asked = Query(text, version=found.head.version, paths=portion.paths)
                    answer = chance.choice(ways).splits(asked)
                    assert answer.version == found.head.version
                    got += answer.files["path"].to_pylist()
                assert max(Counter(got).values()) == 1
                assert set(needed) <= set(got)
            assert found.splits == len(needed) or planner is ways[2]


def test_cutting_an_answer_places_its_hold(served: Served) -> None:
    for way, seconds in zip(every_way(served), (3_600, 7_200, 14_400), strict=True):
        way.portions(EACH, Query(hold_s=seconds))
    assert len(list((served.root / "_tandem/holds").glob("*"))) == 3


def test_numbers_of_portions_add_up(served: Served) -> None:
    for way in every_way(served):
        portions = [portion.paths for portion in tasks(way.portions(EACH))]
        assert len(portions) == 5
        for text, expected in (("", 50), ("id > 7", 42)):
            counts = [way.count(Query(text, paths=paths)) for paths in portions]
            assert sum(counts) == expected
            assert max(counts) <= 10
        bounds = [way.bounds(["id"], Query(paths=paths))["id"] for paths in portions]
        assert sorted(bounds) == [(n, n + 9) for n in range(0, 50, 10)]
        assert way.count(Query(paths=PathRange("~"))) == 0


BAD = [
    ("GetPortions", b'{"table": "flights"}'),
    ("GetPortions", b'{"table": "flights", "tasks": 0, "mostBytes": 1}'),
    ("GetPortions", b'{"table": "flights", "tasks": 1, "mostBytes": 0}'),
    ("GetPortions", b'{"table": "flights", "tasks": 1e9, "mostBytes": 1}'),
    ("GetSplits", b'{"table": "flights", "endPath": "' + b"x" * (MAX_PATH + 1) + b'"}'),
    ("GetSplits", b'{"table": "flights", "firstPath": 5}'),
]


@pytest.mark.parametrize(("call", "body"), BAD, ids=lambda value: str(value)[:60])
def test_a_question_that_is_none_is_refused(served: Served, call: str, body: bytes) -> None:
    with pytest.raises(InvalidSpec):
        served.connect().ask(call, body)


def test_what_a_range_leaves_open_is_open(served: Served) -> None:
    message, _ = served.connect().ask("GetCount", b'{"table": "flights", "endPath": "~"}')
    assert message["rows"] == 50
    message, _ = served.connect().ask("GetCount", b'{"table": "flights", "endPath": ""}')
    assert message["rows"] == 0


def test_Xa_an_answer_for_another_portion_is_none(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = served.index()
    first, second, *_ = (portion.paths for portion in tasks(there.portions(EACH)))
    honest = messages.splits_from

    def lying(change: Callable[[pa.Table], pa.Table]) -> None:
        monkeypatch.setattr(
            client_,
            "splits_from",
            lambda head, table, paths: honest(head, change(table), paths),
        )

    def doubled(table: pa.Table) -> pa.Table:
        return pa.concat_tables([table, table])

    other = served.connect().ask("GetSplits", b'{"table": "flights"}')[0]["ticket"]
    every = served.connect().fetch(other)
    for change, problem in ((doubled, "twice"), (lambda _: every, "other portions")):
        lying(change)
        with pytest.raises(Unreachable, match="not whole") as raised:
            there.splits(Query(version=4, paths=first))
        assert problem in str(raised.value)
    lying(lambda table: table)
    assert len(there.splits(Query(version=4, paths=second))) == 1


@pytest.mark.parametrize("asked", [{"version": 3}, {"table_id": "another"}], ids=str)
def test_Xa_an_answer_of_another_version_is_none(
    served: Served, monkeypatch: pytest.MonkeyPatch, asked: dict[str, object]
) -> None:
    there = served.index()
    honest = there._ask

    def another(call: Any, reply: Any, question: Any, query: Query) -> Any:
        return honest(call, reply, question, replace(query, version=4))

    monkeypatch.setattr(there, "_ask", another)
    for ask in (there.splits, there.count):
        with pytest.raises(Unreachable, match="not whole"):
            ask(Query(**asked))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "table",
    [
        pa.table({"first": ["b", "a"], "parts": [1, 1]}),
        pa.table({"first": ["a", "a"], "parts": [1, 1]}),
        pa.table({"first": ["a"], "parts": [0]}),
        pa.table({"first": ["a"], "parts": [2**40]}),
        pa.table({"first": pa.array([], pa.string()), "parts": pa.array([], pa.int64())}),
        pa.table({"first": pa.array([None, "a"]), "parts": [1, 1]}),
        pa.table({"first": [1], "parts": [1]}),
        pa.table({"first": ["a"]}),
    ],
)
def test_portions_that_overlap_or_have_no_number_are_none(
    served: Served, monkeypatch: pytest.MonkeyPatch, table: pa.Table
) -> None:
    there = served.index()
    monkeypatch.setattr(client_, "one", lambda _: table)
    with pytest.raises(Unreachable, match="not whole"):
        there.portions(EACH)


# Tasks, without Spark.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """As it is mounted into pods."""
    folder = tmp_path / "access"
    folder.mkdir()
    (folder / "token").write_text(TOKEN + "\n")
    return folder


@pytest.fixture(autouse=True)
def new_worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """It waits for a slow machine."""
    monkeypatch.setattr(client_, "Connection", partial(Connection, timeout_s=60))
    indexed_tasks._opened.cache_clear()
    yield
    indexed_tasks._opened.cache_clear()


def read_of(
    served: Served, folder: Path, where: str = "", fallback: Fallback = Fallback.EMBEDDED
) -> PlannedRead:
    address = ServerAddress("flights", "lake", served.endpoint, str(folder))
    source = IndexSource.of(open_store(served.root.as_uri()), address, fallback)
    query = Query(where)
    return PlannedRead.of(source, query, served.index().portions(EACH, query), ["id"])


def asking(planned: PlannedRead, source: IndexSource) -> PlannedRead:
    """The same read by other tasks."""
    return planned.model_copy(update={"read": planned.read.model_copy(update={"source": source})})


def ids(planned: PlannedRead, numbers: list[int] | None = None) -> list[int]:
    """By tasks that get what they are given in another process."""
    reader = PortionsReader(PlannedRead.model_validate_json(planned.model_dump_json()))
    partitions = reader.partitions()
    found = []
    for number in range(len(partitions)) if numbers is None else numbers:
        task: tuple[PortionsReader, TaskPortion] = pickle.loads(
            pickle.dumps((reader, partitions[number]))
        )
        for batch in task[0].read(task[1]):
            found += batch.column(0).to_pylist()
    return sorted(found)


def test_tasks_have_all_rows_of_one_version(served: Served, folder: Path) -> None:
    asked = read_of(served, folder)
    some_ = ids(asked, [0, 3])
    write_deltalake(served.root, rows(50), mode="append")
    DeltaTable(served.root).delete("id < 5")
    others = ids(asked, [1, 2, 4])
    assert sorted(some_ + others) == list(range(50))


def test_nothing_that_tasks_get_is_secret_or_large(served: Served, folder: Path) -> None:
    planned = read_of(served, folder)
    reader = PortionsReader(planned)
    sent = [pickle.dumps((reader, task)) for task in reader.partitions()]
    assert all(path not in pickle.dumps(reader) for path in map(str.encode, planned.firsts))
    assert len(sent) == 5
    paths = [path.encode() for path in planned.firsts]
    for each in (planned.model_dump_json().encode(), *sent):
        assert TOKEN.encode() not in each
    for each in sent:
        assert sum(path in each for path in paths) <= 2, "its own range"
        assert len(each) < 3_000


def test_I51_X13_a_server_that_stops_or_comes_back_between_tasks_costs_no_row(
    served: Served, folder: Path, tmp_path: Path
) -> None:
    asked = read_of(served, folder, "id < 45")
    before = ids(asked, [0, 1])
    served.server.shutdown()
    served.server.wait()
    alone = ids(asked, [2])
    assert isinstance(opened(asked.read.source), client_.ChainedIndex)
    write_deltalake(served.root, rows(50), mode="append")
    again = Served(served.root, AnswerFiles(tmp_path / "again", inline_limit=100))
    with again.server:
        moved = ServerAddress("flights", "lake", again.endpoint, str(folder))
        other = asked.read.source.model_copy(update={"server": moved})
        after = ids(asking(asked, other), [3, 4])
        assert again.service._served["flights"].questions == 2
    assert [n for n in sorted(before + alone + after) if n < 45] == list(range(45))


def test_I51_without_a_fallback_a_task_fails_and_says_why(served: Served, folder: Path) -> None:
    asked = read_of(served, folder, fallback=Fallback.NEVER)
    assert ids(asked) == list(range(50))
    served.server.shutdown()
    with pytest.raises(Unreachable, match="does not answer"):
        ids(asked, [0])


def test_I51_where_the_index_of_a_task_fails_it_reads_every_file_of_its_portion(
    served: Served, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = read_of(served, folder, "id < 25")
    served.server.shutdown()

    def fail(*_: object) -> None:
        raise MemoryError("planted")

    monkeypatch.setattr("tandem.index.library.TableIndex.splits", fail)
    assert ids(asked) == list(range(50)), "Spark evaluates the condition"


def test_a_task_without_the_right_reads_by_its_own_access(served: Served, folder: Path) -> None:
    asked = read_of(served, folder)
    (folder / "token").write_text("another token, of another pod")
    assert ids(asked) == list(range(50))


def test_a_table_that_is_made_again_is_not_read_as_the_one_that_was_planned(
    served: Served, folder: Path, tmp_path: Path
) -> None:
    asked = read_of(served, folder)
    served.root.rename(tmp_path / "away")
    for first in range(100, 107):
        write_deltalake(served.root, rows(first, 1), mode="append")
    with pytest.raises(TableReplaced, match="was replaced"):
        ids(asked, [0])


def loads(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """The versions that are loaded from a log from now on."""
    loaded: list[int | None] = []
    snapshot = DeltaLog.snapshot

    def counted(log: DeltaLog, version: int | None = None) -> Snapshot:
        loaded.append(version)
        return snapshot(log, version)

    monkeypatch.setattr(DeltaLog, "snapshot", counted)
    return loaded


def test_a_worker_loads_the_log_once(
    served: Served, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = IndexSource.of(open_store(served.root.as_uri()))
    asked = asking(read_of(served, folder), here)
    loaded = loads(monkeypatch)
    assert ids(asked) == list(range(50))
    assert loaded == [4]


def test_a_large_file_is_shared_by_its_row_groups(tmp_path: Path) -> None:
    table = tmp_path / "t"
    write_deltalake(table, rows(0, 100))
    DeltaTable(table).delete("id = 17")
    (path,) = DeltaTable(table).file_uris()
    pq.write_table(pq.read_table(path), path, row_group_size=10)
    index = open_index(str(table))
    source, query = IndexSource.of(index.store), Query("id < 35")
    found = replace(index.portions(EACH, query), parts=[4])
    asked = PlannedRead.of(source, query, found, ["id"])
    parts = [ids(asked, [number]) for number in range(4)]
    assert len([part for part in parts if part]) >= 2
    assert sorted(n for part in parts for n in part if n < 35) == [n for n in range(35) if n != 17]
    assert all(len(part) <= 30 for part in parts)


def test_a_version_that_is_no_longer_held_is_loaded_once(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tasks of a long read ask for it one by one."""
    clock = Clock()
    log = DeltaLog(open_store(root.as_uri()))
    held = TableIndex(log)
    held.table = FollowedTable(log, history_s=10, now=clock)
    old = Query(version=4)
    for first in (50, 60, 70):
        assert held.count() == first
        write_deltalake(root, rows(first), mode="append")
        clock.now += 20
    window = held.table.window
    assert held.count() == 80
    assert window is not None
    assert window.first > 4
    before = held.nbytes
    loaded = loads(monkeypatch)
    assert [held.count(old) for _ in range(3)] == [50] * 3
    assert held.count(Query("id < 7", version=4, paths=PathRange())) == 7
    assert loaded == [4]
    assert held.nbytes > before
    root.rename(tmp_path / "away")
    for first in range(100, 110):
        write_deltalake(root, rows(first, 1), mode="append")
    clock.now += 1
    assert held.count(old) == 5, "of the table that is there now"
    assert held.count() == 10
