"""The values of automatic compaction: the input of a decision, its result, and which of the
operations that it has created are unfinished.

The operations that automatic planning creates: their specs and names.

Names are functions of the decision. So two processes that decide the same, at once or one after
the other, create the same object, and there is one plan (A5).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tandem.intervals import NEVER, IntervalSet
from tandem.spec.compaction import AutomaticChunks, CompactionType, TableCompaction
from tandem.spec.fields import format_duration
from tandem.spec.log_compaction import AutomaticLogCompaction
from tandem.spec.replace import Scope
from tandem.spec.status import AutoCompactionWait, Phase
from tandem.spec.table import AutomaticCompaction, AutomaticMinor, HistoryLimits, Schedule
from tandem.timeline.chunks import parse_any_interval

MINOR_LINE = "minor"
"""The line of minor compactions; that of a schedule is its digest."""
LOG_COMPACTION_LINE = "log-compaction"
LOG_MERGE_LINE = "log-merge"
LOG_LINES = frozenset({LOG_COMPACTION_LINE, LOG_MERGE_LINE})
"""The lines of automatic log compactions and merges."""
RETENTION_LINE = "retention"
"""The line of the drops that `retention.rows` makes."""
CHUNKS = "chunks"
"""How the lines of `compaction.chunks` begin: each chunk has one for each state of its content."""
LISTED_SEGMENTS = 10_000
"""With more inputs than this, a spec does not list them (`Minor.segments`)."""

_MAX_NAME = 63  # the length limit of a label's value, and so of a pod's name
_WORDS = {
    CompactionType.MINOR: "minor",
    CompactionType.SEMI_MAJOR: "semi-major",
    CompactionType.MAJOR: "major",
    CompactionType.CUSTOM: "custom",
    CompactionType.LOG_MERGE: "log-merge",
}


@dataclass(frozen=True, slots=True)
class TableId:
    """Identifies the children's table. A table that was deleted and recreated has another
    uid, and its children have other names."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class ChildCompaction:
    """A TableCompaction, LogCompaction or TableReplace to create, owned by its LakeTable.

    Attributes:
        line: `minor`, the digest of the schedule, `chunks-` and the digest of a chunk,
            `retention`, or one of `LOG_LINES`: the children that share a history, and of which at
            most one is unfinished.
        spec: as the API server accepts it.
        what: for display.
        scheduled_ms: when it was due, if it is of a schedule (Unix milliseconds).
        retries: how many of its line failed in a row before it.
    """

    name: str
    line: str
    spec: Mapping[str, Any]
    what: str
    scheduled_ms: int | None = None
    retries: int = 0
    kind: str = TableCompaction.kind_name

    @property
    def display(self) -> str:
        return f"{self.kind}/{self.name}"


def minor_spec(
    table: TableId, policy: AutomaticCompaction, minor: AutomaticMinor, inputs: Sequence[str]
) -> dict[str, Any]:
    """The child names its inputs, so that it executes the decision, whatever is loaded before it
    plans. If there are too many to name, or it takes only adjacent ones (the loop must not merge
    what it makes across a gap), it selects them again by the same rule."""
    options = minor.model_dump(
        mode="json",
        by_alias=True,
        exclude_defaults=True,
        include={"preserve", "max_segment_size", "adjacent_only"},
    )
    options["thresholds"] = list(minor.thresholds)
    if len(inputs) <= LISTED_SEGMENTS and not minor.adjacent_only:
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


def chunks_spec(
    table: TableId, policy: AutomaticCompaction, chunks: AutomaticChunks, labels: Sequence[str]
) -> dict[str, Any]:
    spec = chunks.model_dump(
        mode="json",
        by_alias=True,
        exclude_defaults=True,
        include={"layout", "target_file_size"},
    )
    spec |= {"type": CompactionType.SEMI_MAJOR.value, "semiMajor": {"chunks": list(labels)}}
    return _common(table, policy, spec)


def chunks_line(table: TableId, chunks: AutomaticChunks, label: str, first: str) -> str:
    """`chunks-1f0c9a77e2`: a chunk by its label, and its content by the first segment that is to
    be compacted. Not by all of its segments, so that a process that sees some late loads more
    creates the same object."""
    wanted = chunks.model_dump(mode="json", include={"layout", "target_file_size"})
    return f"{CHUNKS}-{_digest([table.uid, wanted, label, first], 10)}"


def is_of_chunks(line: str) -> bool:
    return line.startswith(f"{CHUNKS}-")


def chunks_in(spec: Mapping[str, Any]) -> IntervalSet:
    """The time chunks that the spec of a compaction names."""
    labels = (spec.get("semiMajor") or {}).get("chunks") or ()
    found = (parse_any_interval(str(label)) for label in labels)
    return IntervalSet(each for each in found if each is not None)


def numbered_name(table: TableId, line: str, number: int) -> str:
    """`flights-chunks-1f0c9a77e2-0`: the line, and the number of failures."""
    return _name(table.name, f"{line}-{number}")


def drop_spec(table: TableId, labels: Sequence[str]) -> dict[str, Any]:
    return {
        "tableRef": {"name": table.name},
        "replace": {"intervals": list(labels)},
        "scope": Scope.AT_COMMIT.value,
    }


def drop_name(table: TableId, labels: Sequence[str], files: Iterable[str], number: int) -> str:
    """`flights-retention-1f0c9a77e2`: a function of the chunks, of their files, and of the number
    of failures."""
    digest = _digest([table.uid, list(labels), sorted(files), number], 10)
    return _name(table.name, f"{RETENTION_LINE}-{digest}")


def _common(table: TableId, policy: AutomaticCompaction, spec: Mapping[str, Any]) -> dict[str, Any]:
    shared = policy.model_dump(
        mode="json",
        by_alias=True,
        exclude_defaults=True,
        include={
            "skip_offset_from_latest",
            "active_deadline_seconds",
            "max_bytes_per_commit",
            "min_row_group_rows",
            "spark_template",
        },
    )
    return {"tableRef": {"name": table.name}, **shared, **spec}


def zone_of(policy: AutomaticCompaction, schedule: Schedule) -> str:
    """The time zone of a schedule's cron expression."""
    if schedule.time_zone is not None:
        return schedule.time_zone
    window = policy.maintenance_window
    return window.time_zone if window is not None else "UTC"


def schedule_line(table: TableId, policy: AutomaticCompaction, schedule: Schedule) -> str:
    """The digest of a schedule: another time or another template is another schedule. Fields that
    only affect how its compactions run are left out."""
    template = schedule.template.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    template["type"] = schedule.template.type.value
    return _digest([table.uid, schedule.cron, zone_of(policy, schedule), template], 8)


def minor_name(
    table: TableId, policy: AutomaticCompaction, first: Sequence[str], number: int
) -> str:
    """`flights-minor-1f0c9a77e2`: a function of the policy, the first run and the number of
    failures. Of the first run and not of all, so that a process that sees a few more loads than
    another one creates the same object."""
    minor = policy.minor.model_dump(mode="json", exclude_defaults=True) if policy.minor else {}
    digest = _digest([table.uid, minor, list(first), number], 10)
    return _name(table.name, f"{_WORDS[CompactionType.MINOR]}-{digest}")


def scheduled_name(table: TableId, type_: CompactionType, line: str, run_ms: int) -> str:
    """`flights-semi-major-5d1c09ab-29395380`: the schedule, and the minute (since 1970) at which
    it was due, as CronJobs name their jobs."""
    return _name(table.name, f"{_WORDS[type_]}-{line}-{run_ms // 60_000}")


def log_compaction_spec(table: TableId, policy: AutomaticLogCompaction) -> dict[str, Any]:
    fields = policy.model_dump(
        mode="json", by_alias=True, exclude_defaults=True, exclude={"min_interval"}
    )
    return {"tableRef": {"name": table.name}, **fields}


def log_merge_spec(table: TableId) -> dict[str, Any]:
    return {"tableRef": {"name": table.name}, "type": CompactionType.LOG_MERGE.value}


def log_name(table: TableId, line: str, log_id: str, since: int, number: int) -> str:
    """`orders-log-merge-1f0c9a77e2`: a function of the log, the instant that its records are
    counted from, and the number of failures. Not of the records, so that a process that sees a few
    more of them creates the same object."""
    return _name(table.name, f"{line}-{_digest([table.uid, line, log_id, since, number], 10)}")


def _name(table: str, rest: str) -> str:
    return f"{table[: _MAX_NAME - 1 - len(rest)].rstrip('-.')}-{rest}"


def _digest(value: object, length: int) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()[:length]


# The values of automatic compaction: the input of a decision, and its result.


@dataclass(frozen=True, slots=True)
class ChildState:
    """An existing automatic compaction.

    Attributes:
        phase: "" before its first status.
        segments: the inputs of its plan; None before it has planned.
        chunks: the time chunks that its spec names.
        ended: it has finished and does not continue by itself.
        ended_ms: when it ended.
        message: why it failed.
    """

    name: str
    line: str
    phase: str
    created_ms: int
    ended: bool = False
    ended_ms: int | None = None
    segments: frozenset[str] | None = None
    chunks: IntervalSet = NEVER
    scheduled_ms: int | None = None
    retries: int = 0
    message: str = ""
    deleting: bool = False
    kind: str = TableCompaction.kind_name

    @property
    def failed(self) -> bool:
        return self.ended and self.phase == Phase.FAILED

    @property
    def at_work(self) -> bool:
        """Whether it holds segments, or may do so later."""
        return not self.ended and self.phase != Phase.SUSPENDED

    @property
    def last_ms(self) -> int:
        return self.created_ms if self.ended_ms is None else max(self.created_ms, self.ended_ms)

    @property
    def display(self) -> str:
        return f"{self.kind}/{self.name}"


@dataclass(frozen=True, slots=True)
class ScheduleState:
    """A schedule, up to when it has been dealt with, and when it fires next (None: never)."""

    line: str
    cron: str
    type: CompactionType
    since_ms: int
    next_ms: int | None


@dataclass(frozen=True, slots=True)
class CompactionCandidate:
    """A compaction that is due, and may start at `ready_ms`, which is in the future after a
    failure.

    Attributes:
        why: why not earlier.
        due_ms: None: at once.
        passed: another one was started when it was due.
    """

    child: ChildCompaction
    type: CompactionType
    ready_ms: int
    why: str
    due_ms: int | None = None
    passed: bool = False

    @property
    def rank(self) -> tuple[bool, int, int, str]:
        return (not self.passed, _ORDER.index(self.type), self.due_ms or 0, self.child.line)


_ORDER = (
    CompactionType.MINOR,
    CompactionType.SEMI_MAJOR,
    CompactionType.MAJOR,
    CompactionType.CUSTOM,
    CompactionType.LOG_MERGE,
)


@dataclass(frozen=True, slots=True)
class AutoCompactionDecision:
    """What to do now.

    Attributes:
        create: children to create; at most one, since the next decision depends on it.
        delete: names of finished children beyond the history's limits.
        next_ms: when the next compaction is expected to start; None if that depends on something
            other than time.
        next_what: which one; "" for none.
        why: why nothing is started now; "" if something is.
        hold: the same in one word.
        wake_ms: when to decide again even if nothing else changes; None for never.
        schedules: to be stored, and passed as `since` next time (line → `since_ms`).
        due: labels of the time chunks that are due, the next ones first.
    """

    create: tuple[ChildCompaction, ...] = ()
    delete: tuple[str, ...] = ()
    next_ms: int | None = None
    next_what: str = ""
    why: str = ""
    wake_ms: int | None = None
    schedules: tuple[ScheduleState, ...] = ()
    hold: AutoCompactionWait = AutoCompactionWait.NOTHING
    due: tuple[str, ...] = ()


# The existing children of automatic compaction: which are unfinished, how a line ended, when its
# next attempt is due, and which ones are deleted.


BACKOFF_MS = 60_000
BACKOFF_MAX_MS = 3600_000


def unfinished(children: Iterable[ChildState], line: str) -> ChildState | None:
    return next((child for child in children if child.line == line and not child.ended), None)


def last_ended(children: Iterable[ChildState], line: str) -> ChildState | None:
    ended = [child for child in children if child.line == line and child.ended]
    return max(ended, default=None, key=lambda child: (child.last_ms, child.retries, child.name))


def busy_reason(child: ChildState) -> str:
    return f"{child.display} is {'suspended' if child.phase == Phase.SUSPENDED else 'at work'}."


def backoff_ms(failures: int) -> int:
    """The delay after the last of so many failures in a row, in milliseconds."""
    return min(BACKOFF_MS << min(failures - 1, 30), BACKOFF_MAX_MS) if failures else 0


def after_failure(
    last: ChildState | None, failures: int, unchanged: str = "its segments"
) -> tuple[int, str]:
    """From when on the next attempt may start, and why not earlier.

    Args:
        unchanged: what the last one did not change, if it ended well and yet counts as a failure.
    """
    if last is None or not failures:
        return 0, ""
    wait = backoff_ms(failures)
    end = f"failed: {last.message}" if last.failed and last.message else "failed"
    what = end if last.failed else f"did not change {unchanged}"
    count = f" It failed {failures} times in a row." if failures > 3 else ""
    why = f"{last.display} {what.rstrip('.')}.{count} Next attempt after {format_duration(wait)}."
    return last.last_ms + wait, why


def beyond_history_limits(
    history: HistoryLimits, children: Sequence[ChildState], lines: Iterable[str]
) -> tuple[str, ...]:
    """Finished children beyond the limits, oldest first. The last one of each of the `lines`
    stays: it is the only record of how that line ended."""
    ended = sorted(
        (child for child in children if child.ended and not child.deleting),
        key=lambda child: (child.last_ms, child.name),
        reverse=True,
    )
    last = {found.name for line in lines if (found := last_ended(ended, line)) is not None}
    well = [child for child in ended if not child.failed]
    badly = [child for child in ended if child.failed]
    beyond_ = [*well[history.succeeded :], *badly[history.failed :]]
    oldest_first = sorted(beyond_, key=lambda child: (child.last_ms, child.name))
    return tuple(child.name for child in oldest_first if child.name not in last)
