"""The compactions that automatic compaction makes: what they ask for, and what they are called.

Names are functions of what was decided. So two that decide alike, at once or one after the
other, ask the API server for the same object, and there is one plan (A5).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tandem.spec.compaction import CompactionType
from tandem.spec.table import AutomaticCompaction, AutomaticMinor, Schedule

MINOR_LINE = "minor"
"""The line of minor compactions; that of a schedule is its digest."""
LISTED_SEGMENTS = 10_000
"""More than so many inputs are not listed in a spec (`Minor.segments`)."""

_MAX_NAME = 63  # what a label's value, and with it a pod's name, can hold
_WORDS = {
    CompactionType.MINOR: "minor",
    CompactionType.SEMI_MAJOR: "semi-major",
    CompactionType.MAJOR: "major",
    CompactionType.CUSTOM: "custom",
}


@dataclass(frozen=True, slots=True)
class TableId:
    """Identifies the children's table. A table that was deleted and created again has another
    uid, and its children have other names."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class ChildCompaction:
    """A TableCompaction to create, owned by its LakeTable.

    Attributes:
        line: `minor`, or the digest of the schedule: its history, and of which there is one at
            a time.
        spec: as the API server takes it.
        what: for people.
        scheduled_ms: when it was due, of a schedule's.
        retries: how many of its line failed in a row before it.
    """

    name: str
    line: str
    spec: Mapping[str, Any]
    what: str
    scheduled_ms: int | None = None
    retries: int = 0


def minor_spec(
    table: TableId, policy: AutomaticCompaction, minor: AutomaticMinor, inputs: Sequence[str]
) -> dict[str, Any]:
    """The child names its inputs, so that it does what was decided, whatever is loaded until
    it plans. Where they are too many to be named, it chooses again by the same rule."""
    options = minor.model_dump(
        mode="json",
        by_alias=True,
        exclude_defaults=True,
        include={"preserve", "max_segment_size"},
    )
    options["thresholds"] = list(minor.thresholds)
    if len(inputs) <= LISTED_SEGMENTS:
        options["segments"] = list(inputs)
    spec: dict[str, Any] = {"type": CompactionType.MINOR.value, "minor": options}
    spec |= minor.model_dump(
        mode="json", by_alias=True, exclude_defaults=True, include={"target_file_size"}
    )
    return _common(table, policy, spec)


def scheduled_spec(
    table: TableId, policy: AutomaticCompaction, schedule: Schedule
) -> dict[str, Any]:
    spec = schedule.template.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    spec["type"] = schedule.template.type.value
    return _common(table, policy, spec)


def _common(table: TableId, policy: AutomaticCompaction, spec: Mapping[str, Any]) -> dict[str, Any]:
    shared = policy.model_dump(
        mode="json",
        by_alias=True,
        exclude_defaults=True,
        include={"skip_offset_from_latest", "active_deadline_seconds", "spark_template"},
    )
    return {"tableRef": {"name": table.name}, **shared, **spec}


def zone_of(policy: AutomaticCompaction, schedule: Schedule) -> str:
    """The zone that a schedule's cron is meant in."""
    if schedule.time_zone is not None:
        return schedule.time_zone
    window = policy.maintenance_window
    return window.time_zone if window is not None else "UTC"


def schedule_line(table: TableId, policy: AutomaticCompaction, schedule: Schedule) -> str:
    """The digest of a schedule: another time or another template is another schedule. What
    only says how its compactions run is left out."""
    template = schedule.template.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    template["type"] = schedule.template.type.value
    return _digest([table.uid, schedule.cron, zone_of(policy, schedule), template], 8)


def minor_name(
    table: TableId, policy: AutomaticCompaction, first: Sequence[str], number: int
) -> str:
    """`flights-minor-1f0c9a77e2`: by the same policy, with the same first run, after as many
    failures, always the same. By the first run and not by all of them, so that one who sees a
    few more loads than another asks for the same all the same."""
    minor = policy.minor.model_dump(mode="json", exclude_defaults=True) if policy.minor else {}
    digest = _digest([table.uid, minor, list(first), number], 10)
    return _name(table.name, f"{_WORDS[CompactionType.MINOR]}-{digest}")


def scheduled_name(table: TableId, type_: CompactionType, line: str, run_ms: int) -> str:
    """`flights-semi-major-5d1c09ab-29395380`: the schedule, and the minute (since 1970) at which
    it was due, as CronJobs name their jobs."""
    return _name(table.name, f"{_WORDS[type_]}-{line}-{run_ms // 60_000}")


def _name(table: str, rest: str) -> str:
    return f"{table[: _MAX_NAME - 1 - len(rest)].rstrip('-.')}-{rest}"


def _digest(value: object, length: int) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:length]
