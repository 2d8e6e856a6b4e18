"""The subject of every line of the log: kind, namespace, name, table, operation id and attempt of
the resource that the work is done for.

A `LogContext` is bound to the context of a resource's handler; its tasks, and the threads that work
for it, inherit it. Fields that are set later (the operation id, the attempt) apply to all of
them.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class LogContext:
    kind: str
    namespace: str
    name: str
    table: str = ""
    operation: str = ""
    attempt: int = 0


_LOG_CONTEXT: ContextVar[LogContext | None] = ContextVar("tandem_subject", default=None)


@contextmanager
def bound_log_context(log_context: LogContext) -> Iterator[LogContext]:
    """All lines logged in the block, and by tasks and threads started in it, have this subject."""
    token = _LOG_CONTEXT.set(log_context)
    try:
        yield log_context
    finally:
        _LOG_CONTEXT.reset(token)


def add_log_context(
    _logger: object, _method: str, line: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """A structlog processor that adds the subject. Fields of the line itself take precedence; a
    line of kopf gets those of its object."""
    record = line.get("_record")
    named = getattr(record, "k8s_ref", None)
    if isinstance(named, dict):
        for key in ("kind", "namespace", "name"):
            if named.get(key):
                line.setdefault(key, named[key])
    log_context = _LOG_CONTEXT.get()
    if log_context is None or line.get("name", log_context.name) != log_context.name:
        return line
    line.setdefault("kind", log_context.kind)
    line.setdefault("namespace", log_context.namespace)
    line.setdefault("name", log_context.name)
    if log_context.table:
        line.setdefault("table", log_context.table)
    if log_context.operation:
        line.setdefault("operation", log_context.operation)
    if log_context.attempt:
        line.setdefault("attempt", log_context.attempt)
    return line
