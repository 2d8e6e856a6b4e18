"""A log that cannot be read is a problem of the log: the table itself can be used."""

from __future__ import annotations

from typing import Any

import pytest

from mergelog.lake import Merged, in_memory, table
from support.documents import document
from support.lake.memory_store import Call, MemoryStore
from tandem.delta.log.delta_log import DeltaLog
from tandem.errors import AccessDenied, ObjectNotFound, Reason, StorageError, TandemError
from tandem.kube.tables.table_log import TableLog
from tandem.operations.model import Table
from tandem.operations.ports import SystemClock, SystemNonces
from tandem.operations.tables.adopt import AdoptedTable, adopt
from tandem.operations.tables.log_status import read_log_status
from tandem.spec.status import TableStatus
from tandem.spec.table import LakeTable

KEYS: dict[str, Any] = {"keys": ["k"]}


def failing(error: type[TandemError], *names: str) -> Any:
    def fault(call: Call) -> None:
        if call.path.startswith("_tandem/log/") and (not names or call.name in names):
            raise error("not now", resource=call.path)

    return fault


def adopted(store: MemoryStore) -> tuple[Table, AdoptedTable]:
    resource = LakeTable.model_validate(
        document("LakeTable", "t", {"location": store.location, "mergeOnRead": KEYS})
    )
    opened = Table(store, DeltaLog(store), resource.id, spec=resource)
    return opened, adopt(opened, SystemClock(), SystemNonces(), probe=False)


@pytest.mark.parametrize(
    ("error", "calls"), [(AccessDenied, ()), (ObjectNotFound, ("get", "head"))]
)
def test_a_log_that_cannot_be_read_is_a_problem_of_the_log(
    error: type[TandemError], calls: tuple[str, ...]
) -> None:
    store = in_memory()
    Merged(store).append(table((1, "a", None)))
    store.fault = failing(error, *calls)
    opened, found = adopted(store)
    assert found.reason is Reason.ADOPTED
    log = TableLog(opened.log)
    assert found.snapshot is not None
    for thoroughly in (True, False):
        log.update(thoroughly=thoroughly)
        log.look(found.snapshot)
        assert (log.exists, log.facts) == (True, None)
        assert "not now" in log.problem
    status = read_log_status(opened, opened.spec, TableStatus())
    assert status is not None
    assert "not now" in (status.problem or "")
    store.fault = None
    log.update(thoroughly=True)
    log.look(found.snapshot)
    assert log.facts is not None
    assert log.problem == ""


def test_a_failure_that_may_pass_is_one_of_the_look() -> None:
    store = in_memory()
    Merged(store).append(table((1, "a", None)))
    store.fault = failing(StorageError)
    with pytest.raises(StorageError):
        TableLog(DeltaLog(store)).update(thoroughly=True)


def test_a_log_that_cannot_be_made_is_a_problem_of_the_table() -> None:
    store = in_memory()
    store.fault = failing(AccessDenied, "put", "put_if_absent")
    with pytest.raises(AccessDenied):
        adopted(store)
