"""On whose behalf something is done, for every line of the log: kind, namespace, name, table,
operation id and attempt.

A `LogContext` is bound to the context of a resource's handler, from where its tasks and the threads
that work for it inherit it. What is learned later (the operation's id, its attempt) is seen by
all of them.
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


_SUBJECT: ContextVar[LogContext | None] = ContextVar("tandem_subject", default=None)


@contextmanager
def bound_log_context(subject: LogContext) -> Iterator[LogContext]:
    """All lines written in the block, and by what is started in it, are about this one."""
    token = _SUBJECT.set(subject)
    try:
        yield subject
    finally:
        _SUBJECT.reset(token)


def add_log_context(
    _logger: object, _method: str, line: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    """A processor of structlog. What a line says itself stays; a line of kopf names its object."""
    record = line.get("_record")
    named = getattr(record, "k8s_ref", None)
    if isinstance(named, dict):
        for key in ("kind", "namespace", "name"):
            if named.get(key):
                line.setdefault(key, named[key])
    subject = _SUBJECT.get()
    if subject is None or line.get("name", subject.name) != subject.name:
        return line
    line.setdefault("kind", subject.kind)
    line.setdefault("namespace", subject.namespace)
    line.setdefault("name", subject.name)
    if subject.table:
        line.setdefault("table", subject.table)
    if subject.operation:
        line.setdefault("operation", subject.operation)
    if subject.attempt:
        line.setdefault("attempt", subject.attempt)
    return line
