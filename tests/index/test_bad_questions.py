"""Questions that cannot be answered: in this process, by a server and by the chain of both, an
error names the field, what was found and what to do."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from support.jobs import quick_lake
from tandem.errors import (
    InvalidSpec,
    InvalidStatement,
    ReferenceNotFound,
    StatementFailed,
    TandemError,
    UnknownSegment,
    VersionNotFound,
)
from tandem.index import Query, open_index
from tandem.index.library import LONGEST_STALE_S, IndexReader
from tandem.index.server.calls import AnswerFiles
from tandem.index.server.client import ChainedIndex, RemoteIndex
from tandem.index.server.messages import MAX_WHERE
from tandem.index.server.service import IndexService
from tandem.index.server.transport import Connection, FlightServer
from tandem.storage import open_store
from tandem.timeline.names import LONGEST_S

WAYS = ("here", "server", "chain")
TEN_MB = 10_000_000


class Ways:
    """A table behind each way to ask."""

    def __init__(self, location: str, port: int) -> None:
        self.connection = Connection(f"grpc://127.0.0.1:{port}", timeout_s=60)
        self.remote = RemoteIndex(self.connection, "orders", open_store(location))
        self.of: dict[str, IndexReader] = {
            "here": open_index(location),
            "server": self.remote,
            "chain": ChainedIndex(self.remote, lambda: open_index(location)),
        }


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A table of five versions and files."""
    root = tmp_path_factory.mktemp("bad") / "lake"
    for version in range(5):
        write_deltalake(root, pa.table({"id": [version], "s": ["x"]}), mode="append")
    return root.as_uri()


@pytest.fixture(scope="module")
def ways(lake: str) -> Iterator[Ways]:
    service = IndexService({"orders": lambda: open_index(lake)}, AnswerFiles(None))
    with FlightServer(service, "127.0.0.1", 0) as server:
        yield Ways(lake, server.port)


BAD: dict[str, tuple[Query, type[TandemError], str, str, str]] = {
    # What is asked → the error, its field, what was found, what to do.
    "column": (Query("idd = 1"), InvalidStatement, "where", "idd", "tandem table show"),
    "segment": (Query(segments=["f-000000000000"]), UnknownSegment, "segments", "f-0000",
                "tandem table segments"),
    "version": (Query(version=77), VersionNotFound, "version", "77", "Log clean-up removes"),
    "time": (Query(timestamp_ms=5), VersionNotFound, "timestamp", "1970-01-01", "Log clean-up"),
    "later version": (Query(at_least=99), VersionNotFound, "atLeast", "version 4", ""),
    "function": (Query("md5(s) = 'x'"), InvalidStatement, "where", "md5", "docs/statements.md"),
    "aggregate": (Query("max(id) = 1"), InvalidStatement, "where", "max", "docs/statements.md"),
    "sub-query": (Query("id = (SELECT 1)"), InvalidStatement, "where", "SELECT",
                  "columns of the row itself"),
    "IN of a sub-query": (Query("id IN (SELECT id FROM t)"), InvalidStatement, "where", "SELECT",
                          "columns of the row itself"),
    "another type": (Query("id = 'x'"), InvalidStatement, "where", "x", "Correct the constant"),
    "no condition": (Query("id + 1"), InvalidStatement, "where", "BIGINT", "Compare"),
    "two statements": (Query("id = 1; DROP TABLE t"), InvalidStatement, "where", ";", "Remove it"),
}  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", BAD)
def test_the_error_is_the_same_in_every_way(ways: Ways, what: str, way: str) -> None:
    query, kind, field, found, remedy = BAD[what]
    for ask in (ways.of[way].count, ways.of[way].splits):
        with pytest.raises(kind) as raised:
            ask(query)
        assert raised.value.field == field
        assert found in raised.value.found
        assert remedy in str(raised.value)


@pytest.mark.parametrize("way", WAYS)
def test_segments_that_were_compacted_since_are_named(tmp_path: Path, way: str) -> None:
    lake = quick_lake.make(tmp_path)
    service = IndexService({"orders": lambda: open_index(lake.location)}, AnswerFiles(None))
    with FlightServer(service, "127.0.0.1", 0) as server:
        asked = Ways(lake.location, server.port).of[way]
        chosen = open_index(lake.location).view().chosen()
        names = set[str]().union(*(part.entries.segments_at(part.rows) for part in chosen))
        assert asked.count(Query(segments=names)) == 40
        version = lake.version
        lake.run(lake.compaction("Major"))
        with pytest.raises(UnknownSegment, match="with --all what has become") as raised:
            asked.count(Query(segments=sorted(names)[:1]))
        assert raised.value.field == "segments"
        assert raised.value.found == sorted(names)[0]
        assert asked.count(Query(segments=names, version=version)) == 40


@pytest.mark.parametrize("way", WAYS)
def test_a_condition_of_ten_megabytes_is_refused(ways: Ways, way: str) -> None:
    for text in (f"s = '{'x' * TEN_MB}'", " OR ".join(["id = 1"] * (TEN_MB // 10))):
        with pytest.raises(InvalidStatement if way != "server" else InvalidSpec) as raised:
            ways.of[way].count(Query(text))
        assert raised.value.field == "where"
        assert raised.value.found
        assert raised.value.remedy
        assert len(str(raised.value)) < 1_000
    assert f"{MAX_WHERE} characters" in str(raised.value) or way != "server"


@pytest.mark.parametrize("way", WAYS)
def test_a_condition_that_only_spark_evaluates_says_where_it_can_be_asked(
    ways: Ways, way: str
) -> None:
    assert len(ways.of[way].splits(Query("s > 5"))) == 5
    with pytest.raises(StatementFailed, match="tandem scan --where") as raised:
        ways.of[way].count(Query("s > 5"))
    assert raised.value.resource == "where"
    assert "`s` > 5" in raised.value.found


@pytest.mark.parametrize(
    ("question", "field", "found"),
    [
        ({"version": 1, "timestamp_ms": 2}, "version", "version=1, timestamp_ms=2"),
        ({"version": 1, "at_least": 0}, "version", "version=1, at_least=0"),
        ({"timestamp_ms": 2, "at_least": 1}, "timestamp_ms", "timestamp_ms=2, at_least=1"),
        ({"max_staleness_s": -1}, "max_staleness_s", "-1"),
        ({"max_staleness_s": math.nan}, "max_staleness_s", "nan"),
        ({"max_staleness_s": LONGEST_STALE_S + 1}, "max_staleness_s", "86401"),
        ({"hold_s": -5}, "hold_s", "-5"),
        ({"hold_s": LONGEST_S + 1}, "hold_s", "604801"),
    ],
)
def test_a_question_that_contradicts_itself_cannot_be_made(
    question: dict[str, Any], field: str, found: str
) -> None:
    with pytest.raises(InvalidSpec) as raised:
        Query(**question)
    assert raised.value.field == field
    assert raised.value.found == found
    assert raised.value.remedy.startswith(("Leave out", "Correct it"))


def test_the_longest_hold_is_that_of_a_server_too(ways: Ways) -> None:
    until = [ways.of[way].splits(Query(hold_s=LONGEST_S)).readable_until_ms for way in WAYS]
    assert min(until) > 0


def test_what_a_server_does_not_take_is_named(ways: Ways) -> None:
    ask = ways.connection.ask
    with pytest.raises(ReferenceNotFound, match="perhaps orders"):
        ask("GetCount", b'{"table": "order"}')
    for body, field, found in (
        (b'{"table": "orders", "wher": "id = 1"}', "wher", "id = 1"),
        (b'{"table": "orders", "version": "newest"}', "version", "newest"),
        (b'{"table": "orders", "api": "v9"}', "api", "v9"),
        (b'{"where": "id = 1"}', "table", ""),
    ):
        with pytest.raises(InvalidSpec, match="client of the server's version") as raised:
            ask("GetCount", body)
        assert raised.value.field == field
        assert found in raised.value.found
        assert raised.value.expected
    with pytest.raises(InvalidSpec, match="exclude each other"):
        ask("GetCount", b'{"table": "orders", "version": 1, "timestampMs": 2}')
