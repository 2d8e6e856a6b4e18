"""The store is cut off from the server, from the caller or from both, in the middle of questions:
answers are right and of one version, none is older than it may be, and an error says why."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from support.waiting import await_that
from tandem.delta.log.delta_log import DeltaLog
from tandem.errors import StorageError
from tandem.index import Query, TableIndex
from tandem.index.server.calls import AnswerFiles
from tandem.index.server.client import ChainedIndex, Fallback, RemoteIndex
from tandem.index.server.service import IndexService
from tandem.index.server.transport import Connection, FlightServer
from tandem.storage import Store, open_store

ROWS, LOADS = 10, 4
WHY = "planted: the network is gone"


class CutOff:
    """A store whose every request fails as long as `cut` is set."""

    def __init__(self, store: Store, cut: threading.Event) -> None:
        self._store, self._cut = store, cut

    @property
    def location(self) -> str:
        return self._store.location

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)

        def request(*given: Any, **named: Any) -> Any:
            if self._cut.is_set():
                raise StorageError(WHY, resource=self._store.location)
            return found(*given, **named)

        return request if callable(found) else found


class Cut:
    """A server, and a caller with access of its own; each may lose its store."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "orders"
        self.next = 0
        for _ in range(LOADS):
            self.load()
        self.server_cut, self.caller_cut = threading.Event(), threading.Event()
        opener = self.opener(self.server_cut)
        self.server = FlightServer(
            IndexService({"orders": opener}, AnswerFiles(None)), "127.0.0.1", 0
        )

    def load(self) -> None:
        ids = range(self.next, self.next + ROWS)
        write_deltalake(self.root, pa.table({"id": ids}), mode="append")
        self.next += ROWS

    def store(self, cut: threading.Event) -> Store:
        return cast(Store, CutOff(open_store(self.root.as_uri()), cut))

    def opener(self, cut: threading.Event) -> Callable[[], TableIndex]:
        return lambda: TableIndex(DeltaLog(self.store(cut)))

    def index(self, fallback: Fallback = Fallback.EMBEDDED) -> ChainedIndex:
        connection = Connection(f"grpc://127.0.0.1:{self.server.port}", timeout_s=60)
        remote = RemoteIndex(connection, "orders", self.store(self.caller_cut))
        return ChainedIndex(remote, self.opener(self.caller_cut), fallback=fallback)


@pytest.fixture
def cut(tmp_path: Path) -> Iterator[Cut]:
    found = Cut(tmp_path)
    with found.server:
        yield found


def require_right(index: ChainedIndex) -> None:
    """A version's rows are as many as it has loads, and its file with id 7 is one."""
    found = index.certain_count(Query("id >= 0"))
    assert (found.rows, len(found.rest)) == (ROWS * (found.version + 1), 0)
    assert index.reader(Query("id = 7")).read_all()["id"].to_pylist() == [7]
    assert index.bounds(["id"], Query(version=2)) == {"id": (0, 3 * ROWS - 1)}


def test_X13_I51_a_servers_store_that_is_cut_in_the_middle_of_questions_costs_no_row(
    cut: Cut,
) -> None:
    over = threading.Event()
    answers, failures = [0] * 4, list[str]()

    def ask(number: int) -> None:
        # One chain leaves a server that failed out for a while: each question has its own.
        while not over.is_set():
            try:
                require_right(cut.index())
            except Exception as error:  # noqa: BLE001 - of a thread; the test shows it
                failures.append(repr(error)[:500])
                return
            answers[number] += 1

    def more_are_answered() -> None:
        before = list(answers)
        await_that(
            lambda: failures or all(a > b for a, b in zip(answers, before, strict=True)),
            "no answers",
        )

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(2):
            more_are_answered()
            cut.server_cut.set()
            cut.load()
            more_are_answered()
            assert cut.index().count() == cut.next, "what was committed before is seen"
            cut.server_cut.clear()
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert failures == []
    assert cut.index(Fallback.NEVER).count() == cut.next


def test_I51_without_a_fallback_the_error_says_why(cut: Cut) -> None:
    strict = cut.index(Fallback.NEVER)
    assert strict.count() == cut.next
    cut.server_cut.set()
    with pytest.raises(StorageError, match=WHY) as raised:
        strict.count()
    assert raised.value.resource.rstrip("/") == cut.root.as_uri()
    cut.server_cut.clear()
    assert strict.count() == cut.next


def test_nothing_older_than_its_staleness_is_answered_while_the_store_is_away(cut: Cut) -> None:
    strict = cut.index(Fallback.NEVER)
    before = strict.count()
    cut.server_cut.set()
    cut.load()
    assert strict.count(Query(max_staleness_s=3_600)) == before
    with pytest.raises(StorageError, match=WHY):
        strict.count()
    with pytest.raises(StorageError, match=WHY):
        strict.count(Query(at_least=LOADS, max_staleness_s=3_600))


def test_with_no_store_at_all_the_callers_error_says_why(cut: Cut) -> None:
    index = cut.index()
    assert index.count() == cut.next
    for event in (cut.server_cut, cut.caller_cut):
        event.set()
    with pytest.raises(StorageError, match=WHY):
        index.count()
    cut.caller_cut.clear()
    assert index.count() == cut.next
