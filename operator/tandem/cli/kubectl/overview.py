"""An overview of tables and operations, problems first. Pure.

Reads objects as the API server gives them, of whatever version of the operator: what is missing
or of another type is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tandem.errors import Reason
from tandem.json_types import Json
from tandem.kube.client.resources import (
    TABLE_KIND,
    Body,
    condition,
    is_active,
    is_plan_copy,
    retry_requested,
    spec_of,
    status_of,
)
from tandem.remedies import remedy
from tandem.spec.common import AUTOMATIC_LABEL, OPERATIONS
from tandem.spec.status import ENDED, Phase, unix_ms

_UNSEEN_S = 30
_LASTS = re.compile(r", (\d+ h )?\d+ (s|min|h)$")
_MOST_PROBLEMS = 20
_NO_PROBLEM = frozenset(
    {
        *(Reason.PENDING, Reason.PLANNED, Reason.WAITING_FOR_DEPENDENCY, Reason.WAITING_FOR_LOCK),
        *(Reason.RUNNING, Reason.RECONCILING, Reason.YIELDED, Reason.SUSPENDED, ""),
    }
)
_WORKING = frozenset({Phase.PLANNED, Phase.LOCKED, Phase.RUNNING, Phase.RECONCILING})
_WAITING = frozenset({Reason.WAITING_FOR_DEPENDENCY, Reason.WAITING_FOR_LOCK, Reason.YIELDED})


_SIZES = ("version", "segments", "files", "smallFiles", "rows", "deletedRows", "bytes")


def overview(
    tables: Sequence[Body],
    operations: Sequence[Body],
    servers: Sequence[Body] = (),
    *,
    now_ms: int,
    problems_of: str = "",
) -> Json:
    """Tables with what happens on them, index servers, and all problems.

    Args:
        problems_of: only this table's, and those of servers.
    """
    operations = [o for o in operations if not is_plan_copy(o)]
    return {
        "tables": [_table(table, operations) for table in sorted(tables, key=_where)],
        "indexServers": [_server(each) for each in sorted(servers, key=_where)],
        "problems": _problems(
            [*tables, *servers], [o for o in operations if problems_of in ("", table_of(o))], now_ms
        ),
        "withoutTable": [
            {"namespace": namespace_of(o), "operation": id_of(o), "table": table_of(o)}
            for o in sorted(operations, key=_where)
            if is_active(o) and not any(_is_on(o, t) for t in tables)
        ],
    }


def _table(table: Body, operations: Iterable[Body]) -> Json:
    status, ready = status_of(table), condition(table, "Ready")
    mine = sorted((o for o in operations if _is_on(o, table)), key=_begun)
    waits = {
        str(lock.get("operation")): lock
        for lock in status.get("locks") or ()
        if lock.get("state") == "Waiting"
    }
    working = [o for o in mine if _is_at_work(o)]
    waiting = [o for o in mine if is_active(o) and not _is_at_work(o)]
    return _known(
        namespace=namespace_of(table),
        name=table["metadata"]["name"],
        location=spec_of(table).get("location") or status.get("location"),
        health=health(table),
        reason=ready.get("reason"),
        message=ready.get("message") if ready.get("status") != "True" else None,
        **{name: status.get(name) for name in _SIZES},
        running=[_running(o) for o in working],
        waiting=[_waiting(o, waits.get(id_of(o), {})) for o in waiting],
        next=_next(status.get("nextCompaction")),
        log=_log(status.get("log")),
        last=[dict(item) for item in status.get("lastOperations") or ()],
    )


def _server(server: Body) -> Json:
    status = status_of(server)
    cache = status.get("cache")
    cache = cache if isinstance(cache, Mapping) else {}
    refused = status.get("notServed")
    return _known(
        namespace=namespace_of(server),
        name=server["metadata"]["name"],
        health=health(server),
        reason=reason_of(server) or condition(server, "Reconciling").get("reason"),
        endpoint=status.get("endpoint"),
        tables=status.get("tableCount"),
        notServed=[dict(each) for each in refused] if isinstance(refused, list) else None,
        **{name: cache.get(name) for name in ("bytes", "limitBytes", "evictions")},
    )


def health(table: Body) -> str:
    """`Suspended`, `Ready`, `NotReady`, `Stalled` (needs a user's action), `Unseen`, `Deleting`."""
    if "deletionTimestamp" in table["metadata"]:
        return "Deleting"
    ready = condition(table, "Ready")
    if not ready and condition(table, "Reconciling").get("reason") == Reason.SUSPENDED:
        return "Suspended"
    if not ready:
        return "Unseen"
    if ready.get("status") == "True":
        return "Ready"
    return "Stalled" if condition(table, "Stalled").get("status") == "True" else "NotReady"


def reason_of(body: Body) -> str:
    kind = "Succeeded" if body.get("kind") in OPERATIONS else "Ready"
    return str(condition(body, kind).get("reason", ""))


def condition_message(body: Body) -> str:
    kind = "Succeeded" if body.get("kind") in OPERATIONS else "Ready"
    return str(condition(body, kind).get("message", ""))


def without_duration(message: str) -> str:
    """`waits for … on segment 0`, without how long it had waited when that was written
    (`duration_in_words`)."""
    return _LASTS.sub("", message)


def _is_at_work(operation: Body) -> bool:
    if not is_active(operation) or reason_of(operation) in _WAITING:
        return False
    return status_of(operation).get("phase") in _WORKING


def _running(operation: Body) -> Json:
    status = status_of(operation)
    progress = status.get("progress") or {}
    return _known(
        operation=id_of(operation),
        phase=status.get("phase"),
        reason=reason_of(operation),
        percent=progress.get("percent") if status.get("phase") == Phase.RUNNING else None,
        summary=progress.get("summary"),
        etaSeconds=progress.get("etaSeconds"),
        attempt=status.get("attempt"),
        since=status.get("startTime"),
        application=status.get("application"),
    )


def _waiting(operation: Body, lock: Mapping[str, Any]) -> Json:
    suspended = status_of(operation).get("phase") == Phase.SUSPENDED
    # How long is shown beside it, and up to date.
    message = condition_message(operation)
    message = without_duration(message) if lock else message
    return _known(
        operation=id_of(operation),
        reason="Suspended" if suspended else reason_of(operation) or "Unseen",
        message=message or None,
        behind=lock.get("behind"),
        since=lock.get("since")
        or status_of(operation).get("startTime")
        or operation["metadata"].get("creationTimestamp"),
    )


def _next(coming: object) -> Json | None:
    if not isinstance(coming, Mapping):
        return None
    return _known(**{key: coming.get(key) or None for key in ("what", "nextTime", "why")})


def _log(log: object) -> Json | None:
    if not isinstance(log, Mapping):
        return None
    return _known(**{**log, "next": _next(log.get("next"))})


def _problems(tables: Iterable[Body], operations: Sequence[Body], now_ms: int) -> list[Json]:
    found = [
        *(p for t in tables if (p := _of_table(t, now_ms)) is not None),
        *(
            p
            for o in sorted(operations, key=_ended, reverse=True)
            if (p := _of_operation(o, operations, now_ms)) is not None
        ),
    ]
    return found[:_MOST_PROBLEMS]


def _of_table(table: Body, now_ms: int) -> Json | None:
    state = health(table)
    if state in ("Ready", "Deleting", "Suspended"):
        return None
    if state == "Unseen":
        return _unseen(table, now_ms)
    ready = condition(table, "Ready")
    if ready.get("reason") == Reason.PENDING:
        return None
    return _problem(table, str(ready.get("lastTransitionTime", "")))


def _of_operation(operation: Body, all_: Sequence[Body], now_ms: int) -> Json | None:
    status = status_of(operation)
    phase = status.get("phase")
    if status.get("observedGeneration", -1) == -1:
        return _unseen(operation, now_ms)
    if phase == Phase.FAILED:
        if retry_requested(operation) or _is_made_good(operation, all_):
            return None
        return _problem(operation, str(status.get("completionTime", "")))
    if phase in ENDED or phase == Phase.SUSPENDED or reason_of(operation) in _NO_PROBLEM:
        return None
    return _problem(operation, str(status.get("startTime", "")))


def _is_made_good(operation: Body, all_: Iterable[Body]) -> bool:
    """A failed automatic compaction that was followed by a successful one of its line."""
    line = _labels(operation).get(AUTOMATIC_LABEL)
    return line is not None and any(
        _labels(o).get(AUTOMATIC_LABEL) == line
        and (namespace_of(o), table_of(o)) == (namespace_of(operation), table_of(operation))
        and status_of(o).get("phase") in (Phase.SUCCEEDED, Phase.SUPERSEDED)
        and _ended(o) > _ended(operation)
        for o in all_
    )


def _unseen(body: Body, now_ms: int) -> Json | None:
    created = str(body["metadata"].get("creationTimestamp", ""))
    born = unix_ms(created)
    if born is None or now_ms - born < _UNSEEN_S * 1000 or "deletionTimestamp" in body["metadata"]:
        return None
    return _known(
        namespace=namespace_of(body),
        table=table_of(body),
        resource=id_of(body),
        reason="Unseen",
        message="no operator has seen it yet",
        since=created,
        remedy="Is an operator running, and does it serve this namespace? `kubectl tandem version`",
    )


def _problem(body: Body, since: str) -> Json:
    reason = reason_of(body)
    return _known(
        namespace=namespace_of(body),
        table=table_of(body),
        resource=id_of(body),
        reason=reason,
        message=condition_message(body),
        since=since or None,
        remedy=remedy(reason) or None,
    )


def namespace_of(body: Body) -> str:
    return str(body["metadata"].get("namespace", ""))


def id_of(body: Body) -> str:
    return f"{body['kind']}/{body['metadata']['name']}"


def table_of(body: Body) -> str:
    """The name of its LakeTable, its own of a LakeTable."""
    if body.get("kind") == TABLE_KIND:
        return str(body["metadata"]["name"])
    return str((spec_of(body).get("tableRef") or {}).get("name", ""))


def _is_on(operation: Body, table: Body) -> bool:
    return namespace_of(operation) == namespace_of(table) and table_of(operation) == table_of(table)


def _labels(body: Body) -> Mapping[str, str]:
    return body["metadata"].get("labels") or {}


def _where(body: Body) -> tuple[str, str, str]:
    return namespace_of(body), str(body["metadata"]["name"]), str(body.get("kind"))


def _begun(body: Body) -> tuple[str, str]:
    begun = status_of(body).get("startTime") or body["metadata"].get("creationTimestamp")
    return str(begun or ""), id_of(body)


def _ended(body: Body) -> str:
    return str(status_of(body).get("completionTime") or "")


def _known(**facts: Any) -> Json:
    """Without what is not known."""
    return {key: value for key, value in facts.items() if value is not None}
