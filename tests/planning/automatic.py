"""A table, its policy and its children, for what automatic compaction decides."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from support.documents import document
from support.lake.segments import loads
from tandem.planning.auto.facts import AutoCompactionDecision, ChildCompaction, ChildState, TableId
from tandem.planning.auto.indexed_table import TableFacts
from tandem.spec.compaction import TableCompaction
from tandem.spec.table import AutomaticCompaction

MINUTE = 60_000
HOUR = 60 * MINUTE
DAY = 24 * HOUR
FLIGHTS = TableId("flights", "1f2e")
NIGHTLY = {"cron": "0 3 * * *", "template": {"type": "SemiMajor"}}
WEEKLY = {"cron": "0 3 * * *", "template": {"type": "Major", "major": {"targetSegmentSize": "2Gi"}}}


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


NOON = at("2026-06-10T12:00")


def policy(**fields: Any) -> AutomaticCompaction:
    return AutomaticCompaction.model_validate(fields)


def table(names: Iterable[str | int], id_: TableId = FLIGHTS) -> TableFacts:
    return TableFacts(id_, loads(names))


def running(child: ChildCompaction, now: int, *, segments: Iterable[str] | None = ()) -> ChildState:
    """The child as it is at work, with what its plan takes (None: it has not planned yet)."""
    return ChildState(
        child.name,
        child.line,
        "Running",
        created_ms=now,
        segments=None if segments is None else frozenset(segments),
        scheduled_ms=child.scheduled_ms,
        retries=child.retries,
    )


def ended(fact: ChildState, now: int, phase: str = "Succeeded", message: str = "") -> ChildState:
    return replace(fact, phase=phase, ended=True, ended_ms=now, message=message)


def since(decision: AutoCompactionDecision) -> dict[str, int]:
    return {state.line: state.since_ms for state in decision.schedules}


def created(decision: AutoCompactionDecision) -> ChildCompaction:
    assert decision.why == ""
    (child,) = decision.create
    # Whatever is created is something that the API server and the engine take.
    TableCompaction.model_validate(document("TableCompaction", child.name, child.spec))
    assert len(child.name) <= 63
    return child
