"""Tables as any engine may have written them (`support.foreign.tables`): the index answers what a
scan finds, in this process and over the wire, or fails for the reason for which the scan does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from support.foreign.tables import TABLES
from tandem.delta import scan
from tandem.delta.log.delta_log import DeltaLog
from tandem.errors import InvalidStatement, Reason, TandemError
from tandem.index import Query, open_index
from tandem.index.library import IndexReader
from tandem.index.server.calls import AnswerFiles
from tandem.index.server.client import RemoteIndex
from tandem.index.server.service import IndexService
from tandem.index.server.transport import Connection, FlightServer
from tandem.storage import open_store

CONDITIONS: dict[str, Callable[[Any], bool]] = {
    "": lambda _: True,
    "id >= 2": lambda n: n is not None and n >= 2,
    "id < 2": lambda n: n is not None and n < 2,
    "id IS NULL": lambda n: n is None,
}

NOT_ASKED = {"columns that differ in case": "ambiguous"}
"""Tables on which a condition on `id` is refused, and why."""


def rows_of(root: Path) -> pa.Table | Reason:
    """All rows by a scan, or why there are none."""
    log = DeltaLog(open_store(root.as_uri()))
    try:
        return scan.scan(log.snapshot(), log.store).read_all()
    except TandemError as error:
        return error.reason


def require_answers(index: IndexReader, ids: list[Any]) -> None:
    for where, test in CONDITIONS.items():
        expected = [n for n in ids if test(n)]
        found = index.reader(Query(where), ["id"]).read_all()["id"].to_pylist()
        assert sorted(map(str, found)) == sorted(map(str, expected)), where
        assert index.count(Query(where)) == len(expected), where
        known = [n for n in expected if n is not None]
        bounds = (min(known), max(known)) if known else (None, None)
        assert index.bounds(["id"], Query(where)) == {"id": bounds}, where


@pytest.mark.part(4)
@pytest.mark.parametrize("name", TABLES)
def test_Xd_numbers_are_those_of_a_scan(name: str, tmp_path: Path) -> None:
    root = tmp_path / "lake"
    TABLES[name].make(root)
    rows = rows_of(root)
    with FlightServer(
        IndexService({"t": lambda: open_index(root.as_uri())}, AnswerFiles(None)), "127.0.0.1", 0
    ) as server:
        connection = Connection(f"grpc://127.0.0.1:{server.port}", timeout_s=60)
        for index in (
            open_index(root.as_uri()),
            RemoteIndex(connection, "t", open_store(root.as_uri())),
        ):
            if isinstance(rows, Reason):
                with pytest.raises(TandemError) as raised:
                    index.reader().read_all()
                assert raised.value.reason == rows
                continue
            assert index.count() == rows.num_rows
            assert index.reader().read_all().num_rows == rows.num_rows
            if name in NOT_ASKED:
                with pytest.raises(InvalidStatement, match=NOT_ASKED[name]):
                    index.count(Query("id >= 2"))
            elif "id" in rows.column_names and pa.types.is_integer(rows["id"].type):
                require_answers(index, rows["id"].to_pylist())
