"""A log compaction or a merge with another commit right before its own: the view is that of a twin
table, where the other commit was alone (W matrix in small, L1, L4, E13). An upsert: as if one came
after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyroaring import BitMap64

from mergelog.orders import MAJOR, MERGE, STITCH, Orders, make, rows
from support.lake.vectors import encode_inline
from support.some import some
from tandem.delta.log.snapshot import commit_info, remove_of
from tandem.operations.machine.events import Effect, Point
from tandem.spec.status import Phase

Action = Callable[[Orders], object]


def _table(orders: Orders) -> DeltaTable:
    return DeltaTable(orders.location)


def _write(ids: range, value: str, at: int, mode: Any = "append") -> Action:
    return lambda orders: write_deltalake(orders.location, rows(ids, value, at), mode=mode)


def _delete_by_vector(orders: Orders) -> None:
    """Deletes the row of key 2 as Spark does: its file stays."""
    base = orders.log.base
    snapshot = base.snapshot()
    (add,) = (
        add
        for add in snapshot.adds()
        if 2 in pq.read_table(orders.folder / add.path, columns=["id"])["id"].to_pylist()
    )
    ids = pq.read_table(orders.folder / add.path, columns=["id"])["id"].to_pylist()
    changed = replace(
        add, deletion_vector=encode_inline(BitMap64([ids.index(2)])), data_change=True
    )
    parameters = {"predicate": '["(id = 2)"]'}
    info = commit_info("DELETE", parameters, now_ms=1, previous=snapshot, blind_append=False)
    removed = remove_of(add, deletion_ms=1, data_change=True)
    base.put_commit(snapshot.version + 1, (info, removed, changed), token="other")


def _merge(orders: Orders) -> None:
    source = pa.table({"id": [3, 5, 30], "at": [9, 9, 9], "value": ["merged"] * 3})
    merger = _table(orders).merge(source, "t.id = s.id", source_alias="s", target_alias="t")
    merger.when_matched_update_all().when_not_matched_insert_all().execute()


def _merge_and_append(orders: Orders) -> None:
    orders.run(MERGE, name="beside")
    orders.append(rows(range(5, 7), "later", 8))


ACTIONS: Final[Mapping[str, Action]] = {
    "append of another key": _write(range(30, 32), "theirs", 6),
    "append of a key of the log": _write(range(5, 6), "theirs", 6),
    "append of a greater row": _write(range(5, 6), "theirs", 9),
    "append of a deleted key": _write(range(1), "theirs", 9),
    "update": lambda orders: _table(orders).update(
        updates={"value": "'changed'", "at": "9"}, predicate="id IN (2, 5)"
    ),
    "delete": lambda orders: _table(orders).delete("id IN (1, 2, 5)"),
    "delete of a row that beats the log": lambda orders: _table(orders).delete("id = 2"),
    "delete of everything": lambda orders: _table(orders).delete(),
    "delete by a vector of a row that beats the log": _delete_by_vector,
    "merge": _merge,
    "overwrite": _write(range(5, 7), "theirs", 1, "overwrite"),
    "optimize": lambda orders: _table(orders).optimize.compact(),
    "restore": lambda orders: _table(orders).restore(0),
    "compaction of ours": lambda orders: orders.run(MAJOR, name="beside"),
    "append to the log": lambda orders: orders.append(rows(range(5, 7), "later", 8)),
    "log compaction": lambda orders: orders.run(STITCH, name="beside"),
    "log merge": lambda orders: orders.run(MERGE, name="beside"),
    "log merge and append to the log": _merge_and_append,
}
LATE = {"append to the log", "log merge and append to the log"}
"""What a merge that has read the log leaves for the next one."""


@dataclass
class Before:
    """An `interceptor` that performs an action right before the first effect of a point."""

    point: Point
    action: Callable[[], object]
    done: bool = False

    def __call__(self, effect: Effect, call: Callable[[], Any]) -> Any:
        if effect.point is self.point and not self.done:
            self.done = True
            self.action()
        return call()


POINTS = (Point.PUT_COMMIT, Point.PERSIST_PLAN, Point.RECONCILE)


@pytest.mark.part(6)
@pytest.mark.parametrize("point", some(POINTS))
@pytest.mark.parametrize(
    ("spec", "action"), [*((MERGE, a) for a in ACTIONS), *((STITCH, a) for a in some([*ACTIONS]))]
)
def test_the_view_is_that_of_the_other_commit_alone(
    orders: Orders,
    orders_template: Path,
    tmp_path: Path,
    spec: dict[str, Any],
    action: str,
    point: Point,
) -> None:
    copy = Orders.copy(orders_template, tmp_path / "twin")
    ACTIONS[action](copy)
    expected = copy.view()
    before = Before(point, lambda: ACTIONS[action](orders))
    status = orders.run(spec, before)
    assert before.done
    assert status.phase in (Phase.SUCCEEDED, Phase.SUPERSEDED), status
    assert orders.view() == expected
    if spec is MERGE and action not in LATE:
        assert orders.base() == expected
    # A second operation of each kind finds it so, too.
    for number, again in enumerate((STITCH, MERGE)):
        orders.do(again, name=f"again-{number}")
        assert orders.view() == expected
    assert orders.base() == expected


@pytest.mark.part(6)
@pytest.mark.parametrize("point", some(POINTS))
@pytest.mark.parametrize("action", some(list(ACTIONS)))
def test_an_upsert_and_another_commit_come_one_after_the_other(
    orders: Orders, orders_template: Path, tmp_path: Path, action: str, point: Point
) -> None:
    spec = {"upsert": {"source": orders.source(rows(range(4, 7), "mine", 8))}}
    first, last = (Orders.copy(orders_template, tmp_path / name) for name in ("first", "last"))
    assert first.run(spec).phase is Phase.SUCCEEDED
    ACTIONS[action](first)
    ACTIONS[action](last)
    assert last.run(spec).phase is Phase.SUCCEEDED
    before = Before(point, lambda: ACTIONS[action](orders))
    status = orders.run(spec, before)
    assert before.done
    assert status.phase is Phase.SUCCEEDED, status
    assert orders.view() in (first.view(), last.view())
    expected = orders.view()
    for number, again in enumerate((STITCH, MERGE)):
        orders.do(again, name=f"again-{number}")
        assert orders.view() == expected


@pytest.fixture(scope="module", params=["", "at"], ids=["by instant", "by ordering column"])
def without_vectors(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    return make(tmp_path_factory.mktemp("template") / "orders", request.param, vectors=False)


@pytest.mark.part(6)
@pytest.mark.parametrize("point", some((Point.PUT_COMMIT, Point.RECONCILE)))
@pytest.mark.parametrize("action", [a for a in ACTIONS if "by a vector" not in a])
def test_without_vectors_a_merge_makes_files_again_beside_another_commit(
    without_vectors: Path, tmp_path: Path, action: str, point: Point
) -> None:
    orders, copy = (Orders.copy(without_vectors, tmp_path / name) for name in ("orders", "twin"))
    protocol = orders.log.base.snapshot().protocol
    ACTIONS[action](copy)
    expected = copy.view()
    acted = Before(point, lambda: ACTIONS[action](orders))
    status = orders.run(MERGE, acted)
    assert acted.done
    assert status.phase in (Phase.SUCCEEDED, Phase.SUPERSEDED), status
    assert orders.view() == expected
    if action not in LATE:
        assert orders.base() == expected
    orders.do(MERGE, name="again")
    assert orders.base() == orders.view() == expected
    base = orders.log.base.snapshot()
    assert base.protocol == protocol
    assert not any(add.deletion_vector for add in base.adds())
