"""Operations of ours on a table that a catalog manages, as `tandem run` does them."""

from __future__ import annotations

import threading
from typing import Any

from support.lake.unity import ManagedTable
from tandem.delta.log.catalog_log import CatalogLog
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.scan import scan
from tandem.operations.adopt import open_table
from tandem.operations.runner import run
from tandem.spec import API_VERSION, LakeTable, parse
from tandem.spec.resources import AnyResource, IndexServer, ResourceOutcome
from tandem.spec.status import Phase
from tandem.storage import open_store

_names = iter(range(1 << 30))
_lock = threading.Lock()


def resource(kind: str, name: str, spec: dict[str, Any]) -> AnyResource:
    found = parse(
        {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
    )
    assert not isinstance(found, IndexServer)
    return found


def lake_table(table: ManagedTable, uri: str = "", **spec: Any) -> LakeTable:
    """Named by catalog, through the server or what stands before it."""
    unity = {"uri": uri or table.server.url, "name": table.full_name}
    found = resource("LakeTable", "t", {"catalog": {"unity": unity}, **spec})
    assert isinstance(found, LakeTable)
    return found


def operate(table: LakeTable, kind: str, **spec: Any) -> ResourceOutcome:
    """Run one operation to its end."""
    with _lock:
        name = f"o{next(_names)}"
    return run([table, resource(kind, name, {"tableRef": {"name": "t"}, **spec})])[1]


def succeeds(table: LakeTable, kind: str, **spec: Any) -> ResourceOutcome:
    """Raises: AssertionError if it fails."""
    outcome = operate(table, kind, **spec)
    assert outcome.status is not None
    assert outcome.status.phase in (Phase.SUCCEEDED, Phase.SUPERSEDED), outcome.status.conditions
    return outcome


def compact(table: LakeTable, **spec: Any) -> ResourceOutcome:
    return succeeds(table, "TableCompaction", type="Major", **spec)


def delete(table: LakeTable, where: str) -> ResourceOutcome:
    return succeeds(table, "TableUpdate", delete={"where": where})


def update(table: LakeTable, where: str, **set_: str) -> ResourceOutcome:
    return succeeds(table, "TableUpdate", update={"where": where, "set": set_})


def log_of(table: ManagedTable, uri: str = "") -> DeltaLog:
    """A writer's own, with a client of its own."""
    store = open_store(f"file://{table.folder}")
    return DeltaLog(store, commits=CatalogLog(store, table.client(uri), table.table_id))


def rows_of(table: ManagedTable) -> list[dict[str, Any]]:
    """By our reader, through the catalog, in order of `id`."""
    opened = open_table(lake_table(table))
    found = scan(opened.log.snapshot(), opened.store).read_all()
    return sorted(found.to_pylist(), key=lambda row: row["id"])
