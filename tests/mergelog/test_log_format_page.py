"""The test vectors of `vectors.md` are what Tandem reads and writes."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from mergelog.orders import MERGE, STITCH, Orders
from support.lake.memory_store import MemoryStore
from tandem.delta.log.delta_log import DeltaLog
from tandem.mergelog.log_table import LogSettings, MergeLog, ensure_log
from tandem.mergelog.versions import in_order
from tandem.mergelog.view import MergedView
from tandem.mergelog.writer import LogWriter

VECTORS = (Path(__file__).resolve().parent / "vectors.md").read_text()
COMMITS = dict(re.findall(r"`(\S+\.json)`:\n\n```json\n(.*?)```", VECTORS, re.DOTALL))
ROWS = dict(re.findall(r"`(\S+\.parquet)`:\n\n((?:\|.*\n)+)", VECTORS))
STATES = re.findall(r"^\| (\d) \| (\d) \| (-?\d) \| (.*) \| (.*) \|$", VECTORS, re.MULTILINE)
BASE, LOG = "_delta_log/", "_tandem/log/_delta_log/"

ARROW = {
    "k": pa.int64(),
    "at": pa.int64(),
    "v": pa.string(),
    "__tandem_deleted": pa.bool_(),
    "__tandem_instant": pa.int64(),
}

TIMES = ("timestamp", "lastUpdated", "createdTime", "modificationTime", "deletionTimestamp")
MADE_UP = frozenset({*TIMES, "engineInfo", "id", "tandem.log.baseId", "path", "size"})
"""Fields whose values on the page are made up."""


def name(version: int) -> str:
    return f"{version:020d}.json"


def parquet(text: str) -> bytes:
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    columns, rows = lines[0], lines[2:]
    schema = pa.schema([(column, ARROW[column]) for column in columns])
    values = {
        column: pa.array([None if row[at] == "NULL" else row[at] for row in rows]).cast(type_)
        for at, (column, type_) in enumerate(zip(columns, schema.types, strict=True))
    }
    written = io.BytesIO()
    pq.write_table(pa.table(values, schema), written)
    return written.getvalue()


def files(log: int, base: int) -> dict[str, bytes]:
    """The page's files, with the commits up to a version of each table."""
    found = {path: parquet(text) for path, text in ROWS.items()}
    newest = {LOG: log, BASE: base}
    for path, text in COMMITS.items():
        folder, _, file = path.rpartition("/")
        if int(file.removesuffix(".json")) <= newest[f"{folder}/"]:
            found[path] = text.encode()
    return found


def test_the_page_has_all_vectors() -> None:
    versions = {BASE: range(2), LOG: range(4)}
    assert COMMITS.keys() == {folder + name(v) for folder in versions for v in versions[folder]}
    adds = [
        path.rpartition("_delta_log/")[0] + action["add"]["path"]
        for path, text in COMMITS.items()
        for action in map(json.loads, text.splitlines())
        if "add" in action
    ]
    assert sorted(adds) == sorted(ROWS)
    assert [state[:2] for state in STATES] == [
        ("0", "0"), ("1", "0"), ("2", "0"), ("3", "0"), ("3", "1")
    ]  # fmt: skip


@pytest.mark.parametrize("state", STATES, ids=lambda state: f"log {state[0]}, base {state[1]}")
def test_the_reader_finds_the_state_and_the_view_of_the_page(state: tuple[str, ...]) -> None:
    store = MemoryStore()
    for path, data in files(int(state[0]), int(state[1])).items():
        store.put(path, data)
    view = MergedView.open(MergeLog(DeltaLog(store)))
    assert (view.instant, view.base.version) == (int(state[0]), int(state[1]))
    assert view.state.mark == int(state[2])
    live = [block.path for block in in_order(view.state.live.values())]
    assert live == re.findall(r"`(.+?)`", state[3])
    rows = view.scan().read_all().sort_by("k").to_pylist()
    assert "; ".join(", ".join(map(str, row.values())) for row in rows) == state[4]


def test_commits_of_the_page_are_those_that_are_made(tmp_path: Path) -> None:
    for path, data in files(-1, 0).items():
        if path in (BASE + name(0), "part-base.parquet"):
            (tmp_path / path).parent.mkdir(exist_ok=True)
            (tmp_path / path).write_bytes(data)
    orders = Orders(tmp_path)
    ensure_log(orders.log, LogSettings(("k",), "at"), now_ms=0, nonce="page")
    with LogWriter(orders.log, "shop") as writer:
        writer.append(rows_of(1, deleted=False), batch=0)
        deletes = rows_of(2, deleted=True).drop_columns(["v"])
        writer.append(rows_of(2, deleted=False), deletes, batch=1)
    orders.do(STITCH)
    orders.do(MERGE)
    for path, text in COMMITS.items():
        root = path.rpartition("_delta_log/")[0]
        made = map(json.loads, filter(None, (tmp_path / path).read_text().splitlines()))
        for shown in map(json.loads, text.splitlines()):
            # In this order; others, which mean nothing to the log, may come between them.
            found = next((action for action in made if is_like(shown, action)), None)
            assert found is not None, f"{path}: {shown}"
            if "add" in shown:
                rows = read((tmp_path / root / found["add"]["path"]).read_bytes())
                assert rows.equals(read(parquet(ROWS[root + shown["add"]["path"]])))


def rows_of(instant: int, *, deleted: bool) -> pa.Table:
    (text,) = (text for path, text in ROWS.items() if f"/{instant}/" in path)
    found = read(parquet(text))
    return found.filter(pc.equal(found["__tandem_deleted"], deleted)).select(["k", "at", "v"])


def read(data: bytes) -> pa.Table:
    return pq.read_table(io.BytesIO(data))


def is_like(shown: Any, made: Any, field: str = "") -> bool:
    """Whether what was made has all that the page shows."""
    if isinstance(shown, dict):
        return isinstance(made, dict) and all(
            key in made and is_like(value, made[key], key) for key, value in shown.items()
        )
    if field in MADE_UP:
        return type(shown) is type(made)
    if field == "appId":
        # Up to the id of a log, or of an operation.
        return re.sub(r"^(tandem(\.log)?:).*", r"\1", shown) == re.sub(
            r"^(tandem(\.log)?:).*", r"\1", made
        )
    if field == "schemaString":
        return bool(json.loads(shown) == json.loads(made))
    return bool(shown == made)
