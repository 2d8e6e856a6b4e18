"""The service over real Flight: each call answers what this process answers by itself; a broken
server costs time, never a row; a caller without the token learns nothing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest
from deltalake import DeltaTable, write_deltalake

from index.clock import Clock
from tandem.errors import (
    AccessDenied,
    InvalidSpec,
    InvalidStatement,
    ReferenceNotFound,
    TandemError,
    UnknownSegment,
    Unreachable,
    VersionNotFound,
)
from tandem.index import EVERYTHING, Query, TableIndex, open_index
from tandem.index.answers import CertainCount
from tandem.index.server.calls import AnswerFiles
from tandem.index.server.client import LEFT_OUT_S, ChainedIndex, Fallback, RemoteIndex
from tandem.index.server.messages import (
    MAX_REQUEST_BYTES,
    MAX_WHERE,
    CacheAnswer,
    CountAnswer,
)
from tandem.index.server.service import IndexService
from tandem.index.server.transport import Connection, FlightServer
from tandem.storage import open_store

TOKEN = "a token that callers present"


class Served:
    """A server of one table, `flights`, and a client's view of it."""

    def __init__(self, root: Path, parts: AnswerFiles, token: str = TOKEN) -> None:
        self.root, self.parts = root, parts
        self.service = IndexService({"flights": lambda: open_index(str(root))}, parts)
        self.server = FlightServer(self.service, "127.0.0.1", 0, token=token)
        self.endpoint = f"grpc://127.0.0.1:{self.server.port}"

    def connect(self, token: str = TOKEN) -> Connection:
        return Connection(self.endpoint, token=token)

    def index(self, token: str = TOKEN) -> RemoteIndex:
        return RemoteIndex(self.connect(token), "flights", open_store(self.root.as_uri()))


def rows(first: int, count: int = 10) -> pa.Table:
    ids = range(first, first + count)
    return pa.table({"id": ids, "name": [f"n{n}" for n in ids], "half": [n / 2 for n in ids]})


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "flights"
    for first in range(0, 50, 10):
        write_deltalake(root, rows(first), mode="append")
    return root


@pytest.fixture
def served(root: Path, tmp_path: Path) -> Iterator[Served]:
    found = Served(root, AnswerFiles(tmp_path / "answers", inline_limit=100))
    with found.server:
        yield found


QUESTIONS = [
    Query(), Query("id < 25"), Query("name = 'n7' OR id > 44"), Query("half > 3", version=2),
    Query("id < 0"), Query("FALSE"), Query(max_staleness_s=5), Query(at_least=4),
]  # fmt: skip


@pytest.mark.parametrize("query", QUESTIONS, ids=str)
def test_the_server_answers_what_this_process_answers(served: Served, query: Query) -> None:
    here, there = open_index(str(served.root)), served.index()
    assert there.count(query) == here.count(query)
    assert there.splits(query).files.equals(here.splits(query).files)
    assert there.splits(query).certain.tolist() == here.splits(query).certain.tolist()
    assert there.bounds(["id", "name", "half"], query) == here.bounds(["id", "name", "half"], query)
    assert there.reader(query).read_all() == here.reader(query).read_all()


def test_an_answer_is_of_the_newest_version(served: Served) -> None:
    there = served.index()
    assert there.count() == 50
    write_deltalake(served.root, rows(50), mode="append")
    assert there.count() == 60
    DeltaTable(served.root).delete("id >= 10")
    assert there.count() == 10
    assert there.count(Query(version=4)) == 50


def test_X9_I50_an_update_is_seen_at_once(served: Served) -> None:
    there = served.index()
    assert there.count(Query("half < 1")) == 2
    DeltaTable(served.root).update(updates={"half": "0.0"}, predicate="id = 40")
    assert there.count(Query("half < 1")) == 3


def test_within_its_staleness_the_log_is_not_listed(served: Served) -> None:
    there = served.index()
    assert there.count() == 50
    write_deltalake(served.root, rows(50), mode="append")
    assert there.count(Query(max_staleness_s=3_600)) == 50
    # One's own write is read even so.
    assert there.count(Query(max_staleness_s=3_600, at_least=5)) == 60


def test_a_version_that_is_not_there_yet_is_an_error(served: Served) -> None:
    with pytest.raises(VersionNotFound, match="no version 99 yet"):
        served.index().count(Query(at_least=99))


def test_X16_I50_a_table_that_is_made_again_leaves_nothing(served: Served, tmp_path: Path) -> None:
    there = served.index()
    assert there.count() == 50
    served.root.rename(tmp_path / "away")
    with pytest.raises(TandemError, match="no Delta table"):
        there.count()
    write_deltalake(served.root, rows(100))
    assert there.count() == 10
    assert there.bounds(["id"]) == {"id": (100, 109)}


def test_X16_a_longer_table_at_the_same_place_leaves_nothing(
    served: Served, tmp_path: Path
) -> None:
    """The version that is held exists again, and is of another table."""
    there = served.index()
    assert there.count() == 50
    served.root.rename(tmp_path / "away")
    for first in range(100, 107):
        write_deltalake(served.root, rows(first, 1), mode="append")
    assert there.count() == 7
    assert there.bounds(["id"]) == {"id": (100, 106)}


def test_X21_the_first_question_of_a_second_client_is_a_hit(served: Served) -> None:
    served.index().count()
    held = served.service._served["flights"].index
    window = held.table._window
    assert served.index().count() == 50
    assert held.table._window is window


@pytest.mark.parametrize(
    ("query", "error"),
    [
        (Query("idd = 1"), InvalidStatement),
        (Query("id = (SELECT 1)"), InvalidStatement),
        (Query(version=77), VersionNotFound),
        (Query(segments=["f-000000000000"]), UnknownSegment),
    ],
    ids=str,
)
def test_an_error_is_that_of_a_call_in_this_process(
    served: Served, query: Query, error: type[TandemError]
) -> None:
    with pytest.raises(error) as here:
        open_index(str(served.root)).count(query)
    with pytest.raises(error) as there:
        served.index().count(query)
    assert str(there.value) == str(here.value)


BAD = [
    ("GetCount", b"no json"),
    ("GetCount", b"[]"),
    ("GetCount", b'{"table": "flights", "limit": 5}'),
    ("GetCount", b'{"table": "flights", "version": 1, "atLeast": 2}'),
    ("GetCount", b'{"table": "flights", "version": 1, "timestampMs": 2}'),
    ("GetCount", b'{"table": "flights", "version": -1}'),
    ("GetCount", b'{"table": "flights", "api": "v2"}'),
    ("GetCount", json.dumps({"table": "flights", "where": "x" * (MAX_WHERE + 1)}).encode()),
    ("GetCount", json.dumps({"table": "flights", "segments": ["s"] * 10_001}).encode()),
    ("GetCount", b'{"table": "flights", "location": "file:///etc"}'),
    ("GetBounds", b'{"table": "flights"}'),
    ("GetBounds", b'{"table": "flights", "columns": []}'),
    ("GetCount", b" " * (MAX_REQUEST_BYTES + 1)),
    ("Drop", b"{}"),
    ("", b"{}"),
]


@pytest.mark.parametrize(("call", "body"), BAD, ids=lambda value: str(value)[:40])
def test_a_question_that_is_none_is_refused(served: Served, call: str, body: bytes) -> None:
    with pytest.raises(InvalidSpec):
        served.connect().ask(call, body)
    assert served.index().count() == 50


BOMBS = {
    "nested": "(" * 30_000 + "1",
    "long": " AND ".join(["id = 1"] * 6_000),
    "list": "id IN (" + ", ".join(map(str, range(10_000))) + ")",
}


@pytest.mark.parametrize("where", BOMBS.values(), ids=BOMBS)
def test_a_condition_that_is_a_bomb_does_not_stop_the_server(served: Served, where: str) -> None:
    body = json.dumps({"table": "flights", "where": where}).encode()
    with suppress(InvalidStatement, InvalidSpec, Unreachable):
        served.connect().ask("GetCount", body)
    assert served.index().count() == 50


def test_without_the_token_nothing_is_told(served: Served) -> None:
    for token in ("", "wrong", TOKEN + "x", TOKEN.upper()):
        for table in ("flights", "other"):
            with pytest.raises(AccessDenied) as error:
                served.connect(token).ask("GetCount", json.dumps({"table": table}).encode())
            assert table not in str(error.value)
    for token in ("ß", TOKEN + " ", "two\nlines"):
        with pytest.raises(InvalidSpec, match="cannot be sent") as refused:
            served.connect(token)
        assert token not in str(refused.value)


def test_an_unknown_table_is_an_error(served: Served) -> None:
    with pytest.raises(ReferenceNotFound, match="perhaps flights"):
        served.connect().ask("GetCount", b'{"table": "Flights"}')


def test_X11_I52_a_large_answer_waits_in_a_file(served: Served, tmp_path: Path) -> None:
    folder = tmp_path / "answers"
    message, tables = served.connect().ask("GetSplits", b'{"table": "flights"}')
    assert tables == []
    assert len(list(folder.iterdir())) == len(served.parts) == 1
    found = served.connect().fetch(message["ticket"])
    assert found.num_rows == message["splits"] == 5
    assert list(folder.iterdir()) == []
    with pytest.raises(AccessDenied, match="ticket"):
        served.connect().fetch(message["ticket"])


def test_X11_I52_a_small_answer_is_sent_at_once(root: Path, tmp_path: Path) -> None:
    served = Served(root, AnswerFiles(tmp_path / "answers", inline_limit=1 << 20))
    with served.server:
        message, tables = served.connect().ask("GetSplits", b'{"table": "flights"}')
        assert message["ticket"] is None
        assert tables[0].num_rows == 5
        assert not (tmp_path / "answers").exists()


@pytest.mark.parametrize("folder", ["", "file/below"])
def test_X11_I52_without_a_folder_an_answer_is_sent_at_once(
    root: Path, tmp_path: Path, folder: str
) -> None:
    (tmp_path / "file").write_text("no folder can be made below this file")
    where = tmp_path / folder if folder else None
    served = Served(root, AnswerFiles(where, inline_limit=10))
    with served.server:
        assert len(served.index().splits()) == 5
        assert len(served.parts) == 0


def test_X11_I52_with_a_full_disk_an_answer_is_sent_at_once(root: Path) -> None:
    served = Served(root, AnswerFiles(Path("/dev/full/answers"), inline_limit=10))
    with served.server:
        assert len(served.index().splits()) == 5


@pytest.mark.parametrize(("kib", "waits"), [(299, False), (300, False), (301, True)])
def test_X11_I52_the_limit_is_at_300_kib(tmp_path: Path, kib: int, waits: bool) -> None:
    answers = AnswerFiles(tmp_path / "answers")
    table = pa.table({"path": pa.array(range(kib * 128), pa.int64())})
    assert table.nbytes == kib * 1024
    assert (answers.keep(table, "me") is not None) == waits


def test_X12_a_count_never_writes_a_file(served: Served, tmp_path: Path) -> None:
    assert served.index().count(Query("name LIKE '%7'")) == 5
    assert not (tmp_path / "answers").exists()


def test_X17_I52_answers_are_removed_after_a_time_and_at_the_start(
    root: Path, tmp_path: Path
) -> None:
    folder, clock = tmp_path / "answers", Clock()
    parts = AnswerFiles(folder, inline_limit=10, ttl_s=100, now=clock)
    first = parts.keep(rows(0), "caller")
    clock.now = 50
    second = parts.keep(rows(0), "caller")
    clock.now = 120
    parts.sweep()
    assert [path.stem for path in folder.iterdir()] == [second]
    with pytest.raises(KeyError):
        parts.fetch(first or "", "caller")
    AnswerFiles(folder)
    assert not folder.exists()


def test_a_ticket_is_for_its_caller_only(tmp_path: Path) -> None:
    parts = AnswerFiles(tmp_path / "answers", inline_limit=10)
    ticket = parts.keep(rows(0), "one") or ""
    with pytest.raises(KeyError):
        parts.fetch(ticket, "other")
    schema, batches = parts.fetch(ticket, "one")
    assert pa.Table.from_batches(batches, schema).equals(rows(0))


def chained(served: Served, clock: Clock, fallback: Fallback = Fallback.EMBEDDED) -> ChainedIndex:
    return ChainedIndex(
        served.index(), lambda: open_index(str(served.root)), fallback=fallback, now=clock
    )


def test_X13_I51_a_server_that_is_down_costs_no_row(root: Path, tmp_path: Path) -> None:
    served, clock = Served(root, AnswerFiles(None)), Clock()
    chain, strict = chained(served, clock), chained(served, clock, Fallback.NEVER)
    with served.server:
        assert chain.count(Query("id > 7")) == strict.count(Query("id > 7")) == 42
    assert chain.count(Query("id > 7")) == 42
    assert chain.bounds(["id"]) == {"id": (0, 49)}
    assert chain.reader(Query("id = 7")).read_all()["name"].to_pylist() == ["n7"]
    with pytest.raises(Unreachable, match="does not answer"):
        strict.count()


def test_X13_I51_where_the_embedded_index_fails_every_file_is_read(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = Served(root, AnswerFiles(None))
    chain = chained(served, Clock())
    served.server.shutdown()

    def fail(*_: object) -> None:
        raise MemoryError("planted")

    monkeypatch.setattr(TableIndex, "certain_count", fail)
    monkeypatch.setattr(TableIndex, "certain_bounds", fail)
    monkeypatch.setattr(TableIndex, "splits", fail)
    assert chain.count(Query("id > 7")) == 42
    assert chain.bounds(["id", "name"], Query("id > 7")) == {"id": (8, 49), "name": ("n10", "n9")}
    assert chain.reader(Query("id = 7")).read_all().num_rows == 1


def test_a_hold_is_placed_by_whoever_answers(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def held() -> list[str]:
        return sorted(path.name for path in (served.root / "_tandem/holds").glob("*"))

    there, week_ms = served.index(), 7 * 86_400_000
    now_ms = time.time() * 1000
    assert there.splits().readable_until_ms >= now_ms + week_ms
    assert held() == []
    DeltaTable(served.root).delete("id = 0")
    old = Query(version=4, hold_s=40_000)
    first = there.splits(old)
    assert first.readable_until_ms >= now_ms + 40_000_000
    assert [name.rpartition("-")[0] for name in held()] == ["4-60000"]
    there.splits(old)
    assert len(held()) == 1
    chain = chained(served, Clock())
    served.server.shutdown()
    assert chain.splits(Query(version=4, hold_s=60)).readable_until_ms >= now_ms + 60_000

    def fail(*_: object) -> None:
        raise MemoryError("planted")

    monkeypatch.setattr(TableIndex, "splits", fail)
    assert chain.splits(Query(version=4, hold_s=70)).readable_until_ms >= now_ms + 70_000
    assert [name.rpartition("-")[0] for name in held()] == ["4-105", "4-60000", "4-90"]


def test_a_server_that_failed_is_left_out_for_a_while(served: Served) -> None:
    clock, asked = Clock(), []

    class Failing(RemoteIndex):
        def certain_count(self, query: Query = EVERYTHING) -> CertainCount:  # noqa: ARG002
            asked.append(clock.now)
            raise Unreachable("planted")

    remote = Failing(served.connect(), "flights", open_store(served.root.as_uri()))
    chain = ChainedIndex(remote, lambda: open_index(str(served.root)), now=clock)
    for now in (0.0, 1.0, LEFT_OUT_S - 1, LEFT_OUT_S):
        clock.now = now
        assert chain.count() == 50
    assert asked == [0.0, LEFT_OUT_S]


def test_a_question_that_is_wrong_is_not_asked_twice(served: Served) -> None:
    def never() -> TableIndex:
        raise AssertionError("asked here, too")

    chain = ChainedIndex(served.index(), never)
    with pytest.raises(InvalidStatement):
        chain.count(Query("idd = 1"))


def test_Xf_a_server_that_hangs_is_given_up_in_time(root: Path) -> None:
    """A socket that accepts and never answers."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        connection = Connection(f"grpc://127.0.0.1:{port}", timeout_s=0.3)
        remote = RemoteIndex(connection, "flights", open_store(root.as_uri()))
        chain = ChainedIndex(remote, lambda: open_index(str(root)))
        assert chain.count() == 50


def test_Xa_half_an_answer_is_none(root: Path) -> None:
    """Dropped, doubled and cut results of a server that lies are noticed."""

    class Lying(flight.FlightServerBase):  # type: ignore[misc]
        results: list[bytes]

        def do_action(self, _context: object, _action: flight.Action) -> Iterator[bytes]:
            yield from self.results

    served = Served(root, AnswerFiles(None), token="")
    good = []
    with served.server:
        action = flight.Action("GetSplits", b'{"table": "flights"}')
        client = flight.FlightClient(served.endpoint)
        good = [result.body.to_pybytes() for result in client.do_action(action)]
    with Lying("grpc://127.0.0.1:0") as liar:
        connection = Connection(f"grpc://127.0.0.1:{liar.port}")
        remote = RemoteIndex(connection, "flights", open_store(root.as_uri()))
        chain = ChainedIndex(remote, lambda: open_index(str(root)), now=Clock())
        fewer = _table(pa.ipc.open_stream(good[1][1:]).read_all().slice(1))
        for results in ([], good[:1], good[1:], [*good, good[1]], [good[0], good[1][:200]],
                        [good[0], fewer], [b"m{}"], [b"x"], [b"mnull"]):  # fmt: skip
            liar.results = results
            chain._left_out_until = -1.0
            assert len(chain.splits()) == 5
        liar.results = good
        assert len(remote.splits()) == 5


def _table(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as out:
        out.write_table(table)
    return b"t" + bytes(sink.getvalue())


def test_the_cache_can_be_shown_and_dropped(served: Served) -> None:
    connection = served.connect()
    shown, _ = connection.ask("ShowCache", b"{}")
    assert shown == {
        "tables": [{"table": "flights", "version": None, "bytes": 0, "questions": 0}],
        "limitBytes": None,
        "evictions": 0,
        "executors": [],
    }
    loaded, _ = connection.ask("Load", b'{"table": "flights"}')
    held = loaded["tables"][0]
    assert held["version"] == 4
    assert held["bytes"] > 500
    dropped, _ = connection.ask("InvalidateCache", b'{"table": "flights"}')
    assert dropped["tables"][0]["version"] is None
    assert served.index().count() == 50


def test_of_many_callers_one_reads_the_log(served: Served) -> None:
    """All see the newest version; the log is listed far less often than it is asked for."""
    listed = []
    there = served.index()
    there.count()
    log = served.service._served["flights"].index.log
    later = log.later

    def counting(*arguments: object) -> object:
        listed.append(1)
        return later(*arguments)  # type: ignore[arg-type]

    log.later = counting  # type: ignore[method-assign,assignment]
    found: list[int] = []

    def ask() -> None:
        index = served.index()
        for _ in range(10):
            found.append(index.count())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [50] * 80
    assert len(listed) <= 80


def test_X5_X19_Xe_what_was_asked_for_least_recently_is_dropped(tmp_path: Path) -> None:
    """And loaded again when it is asked for."""
    roots = {}
    for name in ("one", "two", "three"):
        roots[name] = tmp_path / name
        for first in range(0, 40, 10):
            write_deltalake(roots[name], rows(first), mode="append")
    whole = sizes_of({name: open_index(str(root)) for name, root in roots.items()})
    limit = int(2.5 * max(whole.values()))
    openers = {name: partial(open_index, str(root)) for name, root in roots.items()}
    service = IndexService(openers, AnswerFiles(None), limit_bytes=limit)

    def ask(name: str) -> dict[str, int]:
        """Bytes by table afterwards."""
        service.ask("GetCount", json.dumps({"table": name, "where": "id < 5"}).encode())
        shown = service.ask("ShowCache", b"{}").message
        assert isinstance(shown, CacheAnswer)
        assert sum(each.bytes for each in shown.tables) <= limit
        return {each.table: each.bytes for each in shown.tables}

    ask("one")
    ask("two")
    held = ask("three")
    assert held["one"] == 0
    for name in ("two", "three"):
        assert abs(held[name] - whole[name]) <= whole[name] / 10
    held = ask("one")
    assert held["two"] == 0
    assert held["one"] > 0


def test_a_table_beyond_the_limit_is_held_for_a_question_only(root: Path) -> None:
    service = IndexService({"t": lambda: open_index(str(root))}, AnswerFiles(None), limit_bytes=10)
    for _ in range(2):
        answer = service.ask("GetCount", b'{"table": "t"}').message
        assert isinstance(answer, CountAnswer)
        assert answer.rows == 50
        shown = service.ask("ShowCache", b"{}").message
        assert isinstance(shown, CacheAnswer)
        assert [each.bytes for each in shown.tables] == [0]
        assert shown.evictions > 0


def sizes_of(indexes: dict[str, TableIndex]) -> dict[str, int]:
    for index in indexes.values():
        index.count(Query("id < 5"))
    return {name: index.nbytes for name, index in indexes.items()}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_another_thread_receives_stops_the_server(number: signal.Signals) -> None:
    waits = """
import signal, sys, threading
from tandem.index.server.transport import stop_event

stop = stop_event()
kill = lambda: signal.pthread_kill(threading.get_ident(), int(sys.argv[1]))
threading.Timer(0.2, kill).start()
stop.wait()
"""
    command = [sys.executable, "-c", waits, str(int(number))]
    assert subprocess.run(command, timeout=100, check=False).returncode == 0
