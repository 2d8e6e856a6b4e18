"""Clients that mean harm, or are many: each costs itself, and no other; memory stays bounded."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from support.jobs import quick_lake
from support.waiting import await_that
from tandem.delta.actions import AddFile
from tandem.delta.log.codec import encode_action
from tandem.errors import AccessDenied, InvalidSpec, Unreachable
from tandem.index import Query, open_index
from tandem.index.server import service as service_
from tandem.index.server.access import ReviewedTokens, SharedToken, TokenOwner
from tandem.index.server.calls import Answer, AnswerFiles, CallerTurns
from tandem.index.server.client import ChainedIndex, RemoteIndex
from tandem.index.server.service import IndexService
from tandem.index.server.transport import Connection, FlightServer
from tandem.storage import open_store

TOKEN = "a token that callers present"
FILES = 5_000
SCHEMA = pa.schema([("id", pa.int64()), ("x", pa.float64()), ("y", pa.float64())])
PATIENCE_S = 120.0


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Files of which the log says all that is asked here, and that do not exist."""
    lake = quick_lake.make(tmp_path_factory.mktemp("hostile"), 0, schema=SCHEMA)
    low, high = {"id": 0, "x": 0.5, "y": 0.5}, {"id": 9, "x": 9.5, "y": 9.5}
    stats = {"numRecords": 10, "minValues": low, "maxValues": high,
             "nullCount": dict.fromkeys(low, 0)}  # fmt: skip
    adds = [
        AddFile(f"{n:05}.parquet", {}, 1_000, 1, True, json.dumps(stats), {}) for n in range(FILES)
    ]
    lake.log_raw(*(encode_action(add) for add in adds))
    return lake.location


class Served:
    def __init__(self, location: str, server: FlightServer, service: IndexService) -> None:
        self.location, self.server, self.service = location, server, service
        self.endpoint = f"grpc://127.0.0.1:{server.port}"

    def index(self, timeout_s: float = PATIENCE_S) -> RemoteIndex:
        connection = Connection(self.endpoint, token=TOKEN, timeout_s=timeout_s)
        return RemoteIndex(connection, "t", open_store(self.location))

    def client(self) -> flight.FlightClient:
        return flight.connect(self.endpoint)

    def options(self) -> flight.FlightCallOptions:
        """Of a client that waits for ever."""
        return flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {TOKEN}".encode())])

    def ticket(self) -> flight.Ticket:
        message, _ = Connection(self.endpoint, token=TOKEN, timeout_s=PATIENCE_S).ask(
            "GetSplits", b'{"table": "t"}'
        )
        return flight.Ticket(message["ticket"])


@contextmanager
def served(location: str, folder: Path | None) -> Iterator[Served]:
    service = IndexService({"t": lambda: open_index(location)}, AnswerFiles(folder))
    with FlightServer(service, "127.0.0.1", 0, access=SharedToken(TOKEN)) as server:
        yield Served(location, server, service)


MIB = pa.table({"x": pa.array([b"x" * (1 << 20)])})


LARGE = 100
"""Mebibytes: more than a connection takes unread."""


def large() -> Iterator[pa.RecordBatch]:
    for _ in range(LARGE):
        yield from MIB.to_batches()


def test_streams_that_are_not_read_are_few_and_delay_no_question(
    location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(location, tmp_path / "answers") as there:
        streams = there.server._streams = CallerTurns(2, wait_s=0.1)
        unread = []
        with monkeypatch.context() as patch:
            patch.setattr(
                there.service.parts, "fetch", lambda *_: (MIB.schema, large()), raising=True
            )
            for number in range(2):
                client = there.client()
                ticket = flight.Ticket(b"large")
                unread.append((client, client.do_get(ticket, there.options())))
                await_that(
                    lambda: sum(streams._taken.values()) == number + 1,  # noqa: B023
                    lambda: streams._taken,
                )
        with pytest.raises(Unreachable, match="too much at once"):
            there.index().splits()
        assert there.index().count() == 10 * FILES
        for client, reader in unread:
            reader.cancel()
            client.close()
        await_that(lambda: not streams._taken, lambda: streams._taken)
        assert len(there.index().splits()) == FILES


def test_large_answers_that_are_sent_at_once_are_few_too(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server without a folder for them."""
    with served(location, None) as there:
        streams = there.server._streams = CallerTurns(1, wait_s=0.1)
        client = there.client()
        body = b'{"table": "t"}'
        with monkeypatch.context() as patch:
            whole = there.service.ask("ShowCache", body)
            huge = Answer(whole.message, (MIB,) * LARGE)
            patch.setattr(there.service, "ask", lambda *_: huge)
            unread = client.do_action(flight.Action("ShowCache", body), there.options())
            assert next(unread).body.to_pybytes()[:1] == b"m"
            await_that(lambda: bool(streams._taken), lambda: streams._taken)
        with pytest.raises(Unreachable):
            there.index().splits()
        assert there.index().count() == 10 * FILES
        client.close()
        del unread, client
        gc.collect()
        await_that(lambda: not streams._taken, lambda: streams._taken)
        assert len(there.index().splits()) == FILES


def test_clients_that_close_midway_leave_nothing(location: str, tmp_path: Path) -> None:
    folder = tmp_path / "answers"
    with served(location, folder) as there:
        streams = there.server._streams
        for _ in range(20):
            client = there.client()
            reader = client.do_get(there.ticket(), there.options())
            reader.read_chunk()
            reader.cancel()
            client.close()
            del reader, client
        gc.collect()
        await_that(lambda: not streams._taken, lambda: streams._taken, PATIENCE_S)
        assert not there.server._calls._taken
        assert list(folder.iterdir()) == []
        assert there.index().count() == 10 * FILES


@pytest.mark.matrix
def test_two_hundred_clients_with_one_token_are_all_answered(location: str) -> None:
    with served(location, None) as there:
        there.server._calls = CallerTurns(4, wait_s=PATIENCE_S)
        with ThreadPoolExecutor(200) as pool:
            counts = list(pool.map(lambda _: there.index().count(), range(400)))
        assert counts == [10 * FILES] * 400


def test_a_column_that_is_named_often_is_answered_once(location: str) -> None:
    with served(location, None) as there:
        asked = {"table": "t", "columns": ["x", "X"] * 5_000}
        answer = there.service.ask("GetBounds", json.dumps(asked).encode())
        assert len(answer.tables) == 3
        found = there.index().certain_bounds(["id", "ID", "y"])
        assert [(each.column, each.low) for each in found] == [("id", 0), ("y", None)]


def test_bounds_that_name_too_many_files_are_left_to_the_caller(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks its own process, and the server about the next question."""
    with served(location, None) as there:
        whole = there.index().certain_bounds(["x", "y"])
        size = sum(found.below.files.nbytes for found in whole)
        monkeypatch.setattr(service_, "_MOST_BOUNDS", size // 2)
        with pytest.raises(InvalidSpec, match=r"columns: .*too many.*1 of 2 columns"):
            there.index().certain_bounds(["x", "y"])
        asked: list[str] = []

        def embedded() -> object:
            asked.append("here")
            return open_index(location)

        chain = ChainedIndex(there.index(), embedded)  # type: ignore[arg-type]
        found = chain.certain_bounds(["x", "y"])
        assert [len(each.above) for each in found] == [FILES, FILES]
        assert chain.count() == 10 * FILES
        assert asked == ["here"]


class SlowCluster:
    """Says nothing about made-up tokens until it is let."""

    def __init__(self) -> None:
        self.free = threading.Event()
        self.lock = threading.Lock()
        self.at_once = self.most = 0

    def owner(self, token: str) -> TokenOwner | None:
        if token == "good":
            return TokenOwner("system:serviceaccount:a:good")
        with self.lock:
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        assert self.free.wait(PATIENCE_S)
        with self.lock:
            self.at_once -= 1
        return None

    def may_ask(self, owner: TokenOwner, table: str) -> bool:  # noqa: ARG002
        return True


def test_made_up_tokens_without_number_are_passed_on_a_few_at_a_time() -> None:
    cluster = SlowCluster()
    access = ReviewedTokens(cluster)
    access.require("Bearer good", "t")
    problems: list[Exception] = []

    def knock(number: int) -> None:
        try:
            access.caller(f"Bearer made-up-{number}")
        except (Unreachable, AccessDenied) as error:
            problems.append(error)

    with ThreadPoolExecutor(60) as pool:
        tasks = [pool.submit(knock, number) for number in range(60)]
        await_that(
            lambda: sum(isinstance(each, Unreachable) for each in problems) == 44,
            lambda: problems, PATIENCE_S,
        )  # fmt: skip
        # Who was reviewed before is let in meanwhile.
        access.require("Bearer good", "t")
        cluster.free.set()
        for task in tasks:
            task.result(PATIENCE_S)
    assert cluster.most == 16
    assert sum(isinstance(each, AccessDenied) for each in problems) == 16


@pytest.mark.parametrize("where", ["id < 5", "x > 3 AND x IS NOT NULL", ""])
def test_who_asks_as_hard_as_it_can_gets_right_answers(location: str, where: str) -> None:
    """Up to the limit of calls at once, from one connection."""
    expected = open_index(location).certain_count(Query(where))
    with served(location, None) as there:
        index = there.index()
        with ThreadPoolExecutor(64) as pool:
            found = list(pool.map(lambda _: index.certain_count(Query(where)), range(128)))
    assert {(each.rows, len(each.rest)) for each in found} == {(expected.rows, len(expected.rest))}
