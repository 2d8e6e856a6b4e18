"""Cancels the operations whose resources were deleted while no operator ran.

No finalizer keeps such a resource. What it was doing is named in the status of its LakeTable, and
its spec is below the table's `_tandem/`. What was in neither is cleaned up as of a process that
died (`tandem.planning.cleaning`).
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final

import structlog

from tandem.errors import ManifestInvalid, TandemError
from tandem.kube.client.api import ApiError, NotFound
from tandem.kube.client.resources import Body, is_deleting, key_of, path
from tandem.kube.controllers.operation import OperationController
from tandem.kube.runtime.context import OperatorContext
from tandem.kube.tables.context import TableContext
from tandem.mergelog.log_table import MergeLog
from tandem.operations import attempt_files, garbage
from tandem.operations.attempt_files import OperationRecord
from tandem.operations.model import Table
from tandem.spec.common import GROUP, OPERATIONS, VERSION

_log = structlog.get_logger("tandem.kube.missed_deletions")
_NAME: Final = re.compile(r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?")
_MOST: Final = 100
"""So many names of a status are looked into at a time: users may write anything into it."""


async def cancel_missed(
    context: OperatorContext, table: TableContext, namespace: str, name: str, ran: Collection[str]
) -> set[str]:
    """Cancel what is left of the operations that ran on a table by its last status, as
    `TableCompaction/nightly`, and of which there is no resource any more. Returns those with which
    nothing is left to do; the others, of which some may be next in turn, are to be tried again."""
    looked_at = sorted(ran)[:_MOST]
    found = [await _is_gone(context, namespace, each) for each in looked_at]
    gone = {each for each, is_gone in zip(looked_at, found, strict=True) if is_gone}
    settled = {each for each, is_gone in zip(looked_at, found, strict=True) if is_gone is False}
    opened = table.table
    if not gone or opened is None:
        return settled
    try:
        bodies = await context.threads(
            table.uid, lambda: _left_by(opened, namespace, name, frozenset(gone))
        )
    except TandemError as error:
        _log.warning("not cleaned up", namespace=namespace, table=name, problem=str(error))
        return settled
    for body in bodies:
        kind, _, operation = key = key_of(body)
        there = context.resource_cache.get(key)
        if there is not None and not there.deleting:
            continue  # made again meanwhile: its own controller goes on with it
        _log.info("was deleted meanwhile", kind=kind, namespace=namespace, name=operation)
        await OperationController(context, body).clean_up()
    return settled | gone


async def _is_gone(context: OperatorContext, namespace: str, display: str) -> bool | None:
    """None if that cannot be known now."""
    kind, _, name = display.partition("/")
    if kind not in OPERATIONS or not _NAME.fullmatch(name):
        return False
    try:
        # One that is being deleted has no controller, if that began before this operator.
        return is_deleting(await context.api.get(path(kind, namespace, name)))
    except NotFound:
        return True
    except ApiError as error:
        _log.warning("not found out", namespace=namespace, name=display, problem=str(error))
        return None


def _left_by(table: Table, namespace: str, name: str, gone: Collection[str]) -> list[Body]:
    """The resources of the unfinished operations that have these names, as far as their records say
    it. Raises: ManifestInvalid for a damaged plan, StorageError."""
    log, found = MergeLog(table.log), []
    # What works on the table's log has its files there.
    for store in (table.store, log.store) if log.exists() else (table.store,):
        for operation_id in sorted({pin.operation_id for pin in garbage.unfinished(store)}):
            identity = attempt_files.identity(operation_id)
            try:
                record = attempt_files.load(store, identity, OperationRecord)
            except ManifestInvalid as error:
                _log.warning("not cleaned up", namespace=namespace, table=name, problem=str(error))
                continue
            if record is None or record.namespace != namespace:
                continue
            if f"{record.kind}/{record.name}" in gone:
                found.append(_body(record, name))
    return found


def _body(record: OperationRecord, table: str) -> Body:
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": record.kind,
        "metadata": {
            "namespace": record.namespace,
            "name": record.name,
            # Which uid it had is not known. It has no application: Kubernetes deletes that with it.
            "uid": f"deleted-{record.operation_id}",
            "resourceVersion": "0",
            "generation": 1,
        },
        "spec": {**record.spec, "tableRef": {"name": table}},
        "status": {},
    }
