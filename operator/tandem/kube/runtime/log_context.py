"""The subject of every line of the log: kind, namespace, name, table, operation id and attempt of
the resource that the work is done for.

A `Subject` is bound to the context of a resource's handler, and inherited by its tasks and by the
threads that work for it. Fields that are set later (the operation id, the attempt) apply to all of
them.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Subject:
    kind: str
    namespace: str
    name: str
    table: str = ""
    operation: str = ""
    attempt: int = 0


_SUBJECT: ContextVar[Subject | None] = ContextVar("tandem_subject", default=None)


@contextmanager
def about(subject: Subject) -> Iterator[Subject]:
    """All lines logged in the block, and by tasks and threads started in it, have this subject."""
    token = _SUBJECT.set(subject)
    try:
        yield subject
    finally:
        _SUBJECT.reset(token)


def add_subject(
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
