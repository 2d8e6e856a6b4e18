"""The values of identity columns beside other writers, deaths and unusable properties (R-16, N28).
Real jobs, without Spark; with it: `tests/tables/test_identity_columns.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from support.jobs import quick_lake
from support.jobs.quick_lake import ArrowLake, just_before
from support.lake.lake import INSERT_ALL, message, reason
from tandem.delta import identity
from tandem.delta.actions import Metadata, Protocol
from tandem.delta.log.codec import encode_action
from tandem.operations.machine.events import Effect, Event, Point
from tandem.spec.resources import Operation
from tandem.spec.status import Phase

STEP = 100
"""Of `v`, of which ten rows have the values 0 to 900."""


def make(folder: Path, *, loads: int = 1, **changes: Any) -> ArrowLake:
    """`v` is an identity column; None takes one of its properties out."""
    made = quick_lake.make(folder, loads)
    lake = quick_lake.of_kind(ArrowLake, made.location, folder / "sources")
    lake.backoff_limit = 2
    old = lake.log.snapshot().protocol
    protocol = Protocol(3, 7, old.reader_features, old.writer_features | {"identityColumns"})
    properties = {identity.START: 0, identity.STEP: STEP, identity.MARK: 9 * STEP}
    change(lake, **{**properties, identity.EXPLICIT: False, **changes})
    lake.log_raw(encode_action(protocol))
    lake.first_version = lake.version
    return lake


def change(lake: ArrowLake, **properties: Any) -> None:
    metadata = lake.log.snapshot().metadata
    schema = json.loads(metadata.schema_string)
    for field in schema["fields"]:
        if field["name"] == "v":
            changed = {**field["metadata"], **properties}
            field["metadata"] = {k: v for k, v in changed.items() if v is not None}
    body = encode_action(metadata)
    body["metaData"]["schemaString"] = json.dumps(schema)
    lake.log_raw(body)


def give(lake: ArrowLake, count: int = 3) -> None:
    """What another writer does that is given values: it raises the mark with its rows."""
    change(lake, **{identity.MARK: mark(lake) + count * STEP})


def mark(lake: ArrowLake) -> int:
    snapshot = lake.log.snapshot()
    return identity.identity_columns(snapshot.metadata.schema_string)["v"].reserved


def source(lake: ArrowLake, start: int, end: int, **more: Any) -> Path:
    ids = range(start, end)
    lake.sources.mkdir(exist_ok=True)
    path = lake.sources / f"{start}-{end}-{len(more)}.parquet"
    table = pa.table({"id": pa.array(ids), "k": pa.array([n % 5 for n in ids])} | more)
    pq.write_table(table, path)
    return path


def load(lake: ArrowLake, path: Path) -> Operation:
    body = {"source": {"format": "Parquet", "location": path.as_uri()}}
    return lake.resource("TableIngest", body)


def merge(lake: ArrowLake, path: Path) -> Operation:
    return lake.merge(path, **INSERT_ALL)


EACH = pytest.mark.parametrize("operation", [load, merge])


def values(lake: ArrowLake) -> list[int]:
    """Of all rows; none is there twice, and none lies beyond the mark."""
    found = [v for _, _, v in lake.by_tandem()]
    assert len(set(found)) == len(found)
    assert all(v % STEP == 0 and v <= mark(lake) for v in found)
    return sorted(found)


@EACH
def test_new_rows_have_the_next_values(tmp_path: Path, operation: Any) -> None:
    lake = make(tmp_path)
    lake.do(operation(lake, source(lake, 10, 14)))
    assert values(lake) == [n * STEP for n in range(14)]
    reserved, data = lake.commit(lake.version - 1), lake.commit()
    assert reserved.info is not None
    assert reserved.info.body["tags"] == {identity.SCHEMA_UPDATE: "true"}
    assert [type(action) for action in reserved.actions[1:]] == [Metadata]
    assert not any(isinstance(action, Metadata) for action in data.actions)
    lake.assert_clean()


@EACH
def test_N28_another_writer_is_given_values_meanwhile(tmp_path: Path, operation: Any) -> None:
    """The rows are made again, with values that are reserved first."""
    lake = make(tmp_path)
    held = lake.hold(operation(lake, source(lake, 10, 14)), Point.RECONCILE)
    give(lake)
    assert held.succeed().attempt == 2
    assert values(lake) == [n * STEP for n in (*range(10), *range(13, 17))]
    assert mark(lake) == 16 * STEP
    lake.assert_clean()


@EACH
def test_N28_what_is_reserved_stays(tmp_path: Path, operation: Any) -> None:
    """Also if others are given values before each step of the second attempt."""
    lake = make(tmp_path)
    given: list[Point] = []

    def interceptor(effect: Effect, call: Any) -> Event:
        if effect.point in (Point.RECONCILE, Point.PUT_COMMIT) and len(given) < 4:
            given.append(effect.point)
            give(lake)
        found: Event = call()
        return found

    status = lake.run(operation(lake, source(lake, 10, 14)), interceptor=interceptor)
    assert (status.phase, status.attempt) == (Phase.SUCCEEDED, 2), status
    assert len(values(lake)) == 14
    lake.assert_clean()


@pytest.mark.parametrize("point", [Point.READ_RESULT, Point.RECONCILE, Point.PUT_COMMIT])
@EACH
def test_N28_a_death(tmp_path: Path, operation: Any, point: Point) -> None:
    """What was reserved, and not used, is a gap."""
    lake = make(tmp_path)
    held = lake.hold(operation(lake, source(lake, 10, 14)), point)
    held.kill()
    give(lake)
    lake.do(operation(lake, source(lake, 20, 24)))
    assert len(values(lake)) == 14
    assert mark(lake) >= 16 * STEP


@pytest.mark.parametrize("of", ["compaction", "update", "delete"])
def test_a_raised_mark_is_no_change_of_the_table(tmp_path: Path, of: str) -> None:
    lake = make(tmp_path, loads=2)
    operation = {
        "compaction": lake.compaction(),
        "update": lake.update("id = 3", k="9"),
        "delete": lake.delete("id = 3"),
    }[of]
    status = lake.run(operation, interceptor=just_before(Point.RECONCILE, lambda: give(lake)))
    assert (status.phase, status.attempt) == (Phase.SUCCEEDED, 1), status


WRONG: dict[str, dict[str, Any]] = {
    "no start": {identity.START: None},
    "step 0": {identity.STEP: 0},
    "step true": {identity.STEP: True},
    "a mark of text": {identity.MARK: "900"},
    "a mark beyond 64 bits": {identity.MARK: 1 << 63},
    "a mark between steps": {identity.MARK: 950},
    "explicit, perhaps": {identity.EXPLICIT: "yes"},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_unusable_properties_are_refused_where_values_are_given(tmp_path: Path, wrong: str) -> None:
    lake = make(tmp_path, **WRONG[wrong])
    status = lake.run(load(lake, source(lake, 10, 12)))
    assert reason(status) == "CorruptLog", status
    assert "identity column" in message(status)
    lake.do(lake.delete("id = 1"))
    lake.do(lake.update("id = 2", k="9"))


@EACH
def test_values_that_are_used_up(tmp_path: Path, operation: Any) -> None:
    """One row too many; the last value itself is given."""
    last = ((1 << 63) - 1) // STEP * STEP
    changes: dict[str, Any] = {identity.MARK: last - 2 * STEP}
    lake = make(tmp_path, **changes)
    status = lake.run(operation(lake, source(lake, 10, 13)))
    assert reason(status) == "StatementFailed", status
    assert "used up" in message(status)
    lake.do(operation(lake, source(lake, 10, 12)))
    assert values(lake)[-2:] == [last - STEP, last]


@pytest.mark.parametrize("mark_", [None, -5 * STEP])
def test_values_begin_with_the_start(tmp_path: Path, mark_: int | None) -> None:
    """Also if the mark lies before it."""
    changes: dict[str, Any] = {identity.MARK: mark_}
    lake = make(tmp_path, **changes)
    lake.do(lake.delete("true"))
    lake.do(load(lake, source(lake, 10, 12)))
    assert values(lake) == [0, STEP]


def test_values_that_the_table_gives_alone(tmp_path: Path) -> None:
    lake = make(tmp_path)
    own = source(lake, 10, 12, v=pa.array([1, 2]))
    refused = {
        "InvalidSpec": [load(lake, own)],
        "InvalidStatement": [merge(lake, own), lake.update("id = 1", v="5")],
    }
    for expected, operations in refused.items():
        for operation in operations:
            status = lake.run(operation)
            assert reason(status) == expected, status
            assert "identity column" in message(status)
    assert values(lake) == [n * STEP for n in range(10)]


def test_values_of_a_source_where_they_are_allowed(tmp_path: Path) -> None:
    """As for Spark, they do not raise the mark, and NULL stays."""
    changes: dict[str, Any] = {identity.EXPLICIT: True}
    lake = make(tmp_path, **changes)
    before = mark(lake)
    lake.do(load(lake, source(lake, 10, 13, v=pa.array([7, 8, None]))))
    assert mark(lake) == before
    insert = [
        {"where": "s.id < 21", "insert": {"values": {"id": "s.id", "v": "s.id * -10L"}}},
        {"insert": {"values": {"id": "s.id"}}},
    ]
    lake.do(lake.merge(source(lake, 20, 23), whenNotMatched=insert))
    found = {id_: v for id_, _, v in lake.by_tandem() if id_ >= 10}
    own, given = {10: 7, 11: 8, 12: None, 20: -200}, {21: 10 * STEP, 22: 11 * STEP}
    assert found == own | given
    assert mark(lake) == 11 * STEP


def test_clauses_go_on_with_the_values_of_the_one_before(tmp_path: Path) -> None:
    lake = make(tmp_path)
    insert = [
        {"where": "s.id < 12", "insert": {"values": {"id": "s.id"}}},
        {"insert": {"values": {"id": "s.id", "k": "7L"}}},
    ]
    lake.do(lake.merge(source(lake, 10, 15), whenNotMatched=insert))
    assert values(lake) == [n * STEP for n in range(15)]


def test_a_source_row_whose_match_is_deleted_meanwhile_gets_a_value(tmp_path: Path) -> None:
    """The merge is executed again as a whole, with the values of the first time."""
    lake = make(tmp_path)
    matched = [{"where": "s.k > 100", "update": {"set": {"k": "s.k"}}}]
    operation = lake.merge(source(lake, 7, 13), whenMatched=matched, **INSERT_ALL)
    acted = just_before(Point.RECONCILE, lambda: lake.do(lake.delete("id = 8")))
    status = lake.run(operation, interceptor=acted)
    assert status.phase is Phase.SUCCEEDED, status
    assert {id_ for id_, _, _ in lake.by_tandem()} == set(range(13))
    assert values(lake)[-4:] == [n * STEP for n in range(10, 14)]
    assert len(values(lake)) == 13
    lake.assert_clean()
