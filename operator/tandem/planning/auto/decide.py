"""Automatic compaction: what to start now, what comes next, and why nothing runs now.

A pure function of the policy, the table's segments, the existing children, and the time.
Decision 0050 has the reasons for the rules; `docs/automatic-compaction.md` describes them for
users. `chunks` decides which time chunks are due.

- A *line* is the minor compactions of a table, those of one schedule, or those of a time chunk:
  each runs one at a time.
- Minor ones are due as soon as a run is compactible, scheduled ones by cron (of missed times only
  the latest). All start within the window and `minInterval`, with a backoff after failures.
- If several are due: minor before semi-major before major; but a skipped one goes next.
- A scheduled one starts when no other is at work; a minor one may start beside it, on segments
  that the other does not hold. One of chunks starts beside minor ones and others of chunks, in
  chunks where none of them is.

Times of day in a zone: when a schedule fires, when a maintenance window is open.

Pure: times are Unix milliseconds, zones and cron are tables and arithmetic. Cron means the same as
in a CronJob and in Debian, including Debian's rule for the two days a year on which clocks are
changed: a fixed time that is skipped comes right after the gap, one that occurs twice counts once;
`*` fields follow real time. (Where clocks change by half an hour, which is on Lord Howe Island,
cronsim may be wrong about the latter on that day.)
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim

from tandem.planning.auto import chunks
from tandem.planning.auto.facts import (
    MINOR_LINE,
    AutoCompactionDecision,
    ChildCompaction,
    ChildState,
    CompactionCandidate,
    ScheduleState,
    TableId,
    after_failure,
    beyond_history_limits,
    busy_reason,
    is_of_chunks,
    last_ended,
    minor_name,
    minor_spec,
    schedule_line,
    scheduled_name,
    scheduled_spec,
    unfinished,
    zone_of,
)
from tandem.planning.auto.indexed_table import AutomaticTable, MinorRuns
from tandem.planning.plans import CompactionRequest
from tandem.spec.compaction import CompactionType
from tandem.spec.fields import format_duration
from tandem.spec.status import AutoCompactionWait
from tandem.spec.table import AutomaticCompaction, Schedule
from tandem.timeline import lineage

_MINUTE = timedelta(minutes=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_MARGIN = timedelta(hours=3)
"""More than any clock change: within it, local times may be out of order."""
_DAY = timedelta(days=1)


def next_run(cron: str, zone: str, after_ms: int) -> int | None:
    """The first time after a moment at which a schedule fires; None if it never does.

    Args:
        cron: five fields, as `Schedule` accepts them. A schedule that does not fire within 50
            years never does.
    """
    for moment in _runs(cron, ZoneInfo(zone), after_ms, reverse=False):
        if moment > after_ms:
            return moment
    return None


def latest_run(cron: str, zone: str, *, after_ms: int, until_ms: int) -> int | None:
    """The last time in `(after_ms, until_ms]` at which a schedule fired: of several missed runs,
    only this one counts."""
    for moment in _runs(cron, ZoneInfo(zone), until_ms, reverse=True):
        if moment <= after_ms:
            return None
        if moment <= until_ms:
            return moment
    return None


def is_open(start: str, duration_ms: int, zone: str, now_ms: int) -> bool:
    """Whether a daily window is open that begins at `start` (`HH:MM`) and may extend past
    midnight. Its length is real time, also on days on which clocks change."""
    return any(o <= now_ms < o + duration_ms for o in _openings(start, zone, now_ms))


def next_opening(start: str, zone: str, now_ms: int) -> int:
    """When the window opens next after a given time."""
    return min(opening for opening in _openings(start, zone, now_ms) if opening > now_ms)


def _openings(start: str, zone: str, now_ms: int) -> Iterator[int]:
    tz = ZoneInfo(zone)
    today = _local(now_ms, tz).date()
    for days in (-2, -1, 0, 1, 2):
        yield _instant(datetime.combine(today + days * _DAY, time.fromisoformat(start)), tz)


def _runs(cron: str, zone: ZoneInfo, from_ms: int, *, reverse: bool) -> Iterator[int]:
    """Firing times in order, from somewhat before the time (after it, if reverse)."""
    minute, hour = cron.split()[:2]
    margin = -_MARGIN if not reverse else _MARGIN
    if minute.startswith("*") or hour.startswith("*"):
        start = (_EPOCH + from_ms * _MILLISECOND + margin).astimezone(zone)
        for moment in CronSim(cron, start, reverse=reverse):
            yield _ms(moment)
    else:
        # Run cron on local time, and convert its results to real time.
        for wall in CronSim(cron, _local(from_ms, zone) + margin, reverse=reverse):
            yield _instant(wall, zone)


def _local(ms: int, zone: ZoneInfo) -> datetime:
    return (_EPOCH + ms * _MILLISECOND).astimezone(zone).replace(tzinfo=None)


def _instant(wall: datetime, zone: ZoneInfo) -> int:
    """When a local clock shows this time first; the end of the gap if clocks skip it."""
    while _is_skipped(wall, zone):
        wall += _MINUTE
    return _ms(wall.replace(tzinfo=zone))


def _is_skipped(wall: datetime, zone: ZoneInfo) -> bool:
    return wall.replace(tzinfo=zone).astimezone(UTC).astimezone(zone).replace(tzinfo=None) != wall


def _ms(moment: datetime) -> int:
    return (moment - _EPOCH) // _MILLISECOND


def kubernetes_time(ms: int) -> str:
    """A time as Kubernetes writes it."""
    return (_EPOCH + ms // 1000 * timedelta(seconds=1)).strftime("%Y-%m-%dT%H:%M:%SZ")


BATCH = 2_000
"""About how many segments one minor compaction takes: an adopted table of a million small files
becomes many commits, each of which may fail independently."""


def decide(
    policy: AutomaticCompaction,
    table: AutomaticTable,
    children: Sequence[ChildState],
    now_ms: int,
    since: Mapping[str, int] | None = None,
) -> AutoCompactionDecision:
    """What automatic compaction does at a given time.

    Args:
        children: all automatic compactions of this table that exist, in any order.
        since: up to when each schedule has been dealt with, from an earlier decision. A schedule
            that is missing begins now: runs that it missed before are not made up for.
    """
    states = tuple(_states(policy, table.id, children, now_ms, since or {}))
    candidates, notes = _due(policy, table, children, now_ms, states)
    lines = {MINOR_LINE, *(state.line for state in states)}
    due: tuple[str, ...] = ()
    if policy.chunks is not None:
        of_chunks = chunks.decide(policy, policy.chunks, table, children, now_ms)
        candidates += of_chunks.candidates
        notes += [of_chunks.note] if of_chunks.note else []
        lines |= of_chunks.lines
        due = of_chunks.due
    decision = _decision(policy, children, now_ms, states, candidates, notes)
    delete = beyond_history_limits(policy.history, children, lines)
    return replace(decision, delete=delete, due=due)


def _decision(
    policy: AutomaticCompaction,
    children: Sequence[ChildState],
    now_ms: int,
    states: tuple[ScheduleState, ...],
    candidates: Sequence[CompactionCandidate],
    notes: Sequence[str],
) -> AutoCompactionDecision:
    """Which candidate starts now, or why none does."""
    coming = [each.ready_ms for each in candidates if each.ready_ms > now_ms]
    coming += [state.next_ms for state in states if state.next_ms is not None]
    ready = sorted((c for c in candidates if c.ready_ms <= now_ms), key=lambda c: c.rank)
    if not ready:
        next_ms, what, why = _expected(policy, children, candidates, states)
        why = " ".join(filter(None, (why, *notes)))
        hold = _hold(candidates, children)
        return AutoCompactionDecision(
            (), (), next_ms, what, why, min(coming, default=None), states, hold
        )
    first = ready[0].child
    start_ms, why = _earliest(policy, children, now_ms)
    if start_ms > now_ms:
        why = " ".join((why, *notes))
        wake = min([start_ms, *coming])
        hold = (
            AutoCompactionWait.INTERVAL if _is_open(policy, now_ms) else AutoCompactionWait.WINDOW
        )
        return AutoCompactionDecision((), (), start_ms, first.what, why, wake, states, hold)
    wake_ms = min(coming, default=None)
    blockers: list[ChildState] = []
    for each in ready:
        blocker = _blocker(each.child, children)
        if blocker is None:
            child = each.child
            return AutoCompactionDecision((child,), (), now_ms, child.what, "", wake_ms, states)
        blockers.append(blocker)
        if each.child.line != MINOR_LINE:
            break  # nothing overtakes a schedule that waits
    why = " ".join((f"Waits for {blockers[0].display}.", *notes))
    return AutoCompactionDecision(
        (), (), None, first.what, why, wake_ms, states, AutoCompactionWait.AT_WORK
    )


def _hold(
    waiting: Sequence[CompactionCandidate], children: Sequence[ChildState]
) -> AutoCompactionWait:
    """What automatic compaction waits for if no candidate is ready."""
    if waiting:
        return AutoCompactionWait.AFTER_FAILURE
    return (
        AutoCompactionWait.AT_WORK
        if any(child.at_work for child in children)
        else AutoCompactionWait.NOT_DUE
    )


# Due compactions


def _states(
    policy: AutomaticCompaction,
    table: TableId,
    children: Sequence[ChildState],
    now_ms: int,
    since: Mapping[str, int],
) -> Iterable[ScheduleState]:
    seen: set[str] = set()
    for schedule in policy.schedules:
        line = schedule_line(table, policy, schedule)
        if line in seen:  # equal schedules count as one
            continue
        seen.add(line)
        done = [c.scheduled_ms for c in children if c.line == line and c.scheduled_ms is not None]
        # A policy that was removed and set again has no record of its own runs. It does not make
        # up for the time without a policy, although earlier children may still exist.
        begun = max([since[line], *done]) if line in since else now_ms
        next_ms = next_run(schedule.cron, zone_of(policy, schedule), max(begun, now_ms))
        yield ScheduleState(line, schedule.cron, schedule.template.type, begun, next_ms)


def _due(
    policy: AutomaticCompaction,
    table: AutomaticTable,
    children: Sequence[ChildState],
    now_ms: int,
    states: Sequence[ScheduleState],
) -> tuple[list[CompactionCandidate], list[str]]:
    """What is due, even if it must wait; and notes on what cannot become due."""
    found: list[CompactionCandidate] = []
    notes: list[str] = []
    if policy.minor is not None and policy.minor.enabled:
        candidate, note = _minor(policy, table, children)
        found += [candidate] if candidate is not None else []
        notes += [note] if note else []
    elif not policy.schedules and policy.chunks is None:
        notes.append("Neither minor compactions, chunks nor schedules are configured.")
    by_line = {schedule_line(table.id, policy, each): each for each in policy.schedules}
    for state in states:
        candidate, note = _scheduled(policy, by_line[state.line], state, table.id, children, now_ms)
        found += [candidate] if candidate is not None else []
        notes += [note] if note else []
    return found, notes


def _minor(
    policy: AutomaticCompaction, table: AutomaticTable, children: Sequence[ChildState]
) -> tuple[CompactionCandidate | None, str]:
    assert policy.minor is not None
    running = unfinished(children, MINOR_LINE)
    if running is not None:
        return None, busy_reason(running)
    held = frozenset[str]().union(*(c.segments or () for c in children if c.at_work))
    request = CompactionRequest(
        CompactionType.MINOR,
        thresholds=policy.minor.thresholds,
        preserve=policy.minor.preserve,
        max_segment_size=policy.minor.max_segment_size,
        target_file_size=policy.minor.target_file_size or table.target_file_size,
        adjacent_only=policy.minor.adjacent_only,
        skip_offset_ms=policy.skip_offset_from_latest,
        excluded=held,
    )
    found = table.minor_runs(request)
    if not found.runs:
        return None, found.nothing
    inputs = _batch(found)
    spec = minor_spec(table.id, policy, policy.minor, inputs)
    first = found.runs[0]
    last = last_ended(children, MINOR_LINE)
    number, in_vain = 0, False
    if last is not None:
        # A child that succeeded and yet left its inputs did nothing: requesting the same again at
        # once would never end.
        in_vain = last.name == minor_name(table.id, policy, first, last.retries)
        number = last.retries + 1 if last.failed or in_vain else 0
    ready_ms, why = after_failure(last, number)
    names = {child.name for child in children}
    while (name := minor_name(table.id, policy, first, number)) in names:
        number += 1  # the inputs came back, by a restore; that name has been used
    what = f"Minor of segments {lineage.format_lineage(lineage.of(inputs), 60)}"
    child = ChildCompaction(name, MINOR_LINE, spec, what, retries=number)
    return CompactionCandidate(child, CompactionType.MINOR, ready_ms, why, None), ""


def _batch(found: MinorRuns) -> tuple[str, ...]:
    """The inputs of whole runs, at least one, with about `BATCH` segments in all."""
    chosen: dict[str, None] = {}
    for run in found.runs:
        if chosen and len(chosen) + len(run) > BATCH:
            break
        chosen.update(dict.fromkeys(run))
    return tuple(chosen)


def _scheduled(
    policy: AutomaticCompaction,
    schedule: Schedule,
    state: ScheduleState,
    table: TableId,
    children: Sequence[ChildState],
    now_ms: int,
) -> tuple[CompactionCandidate | None, str]:
    run_ms = latest_run(
        schedule.cron, zone_of(policy, schedule), after_ms=state.since_ms, until_ms=now_ms
    )
    spec = scheduled_spec(table, policy, schedule)
    name = scheduled_name(table, state.type, state.line, run_ms or 0)
    running = unfinished(children, state.line)
    if running is not None:
        return None, busy_reason(running)
    if run_ms is None:
        return None, ""
    ready_ms, why, retries = _after_failed_run(children, state.line)
    passed = any(c.line != state.line and c.created_ms >= run_ms for c in children)
    child = ChildCompaction(name, state.line, spec, _what(state), run_ms, retries)
    return CompactionCandidate(child, state.type, ready_ms, why, run_ms, passed), ""


def _what(state: ScheduleState) -> str:
    return f"{state.type} by schedule {state.cron!r}"


def _after_failed_run(children: Sequence[ChildState], line: str) -> tuple[int, str, int]:
    last = last_ended(children, line)
    failures = last.retries + 1 if last is not None and last.failed else 0
    return (*after_failure(last, failures), failures)


# Start times


def _earliest(
    policy: AutomaticCompaction, children: Sequence[ChildState], from_ms: int
) -> tuple[int, str]:
    """The earliest start from a given time on, by `minInterval` and the window; and why."""
    start_ms, why = from_ms, ""
    if policy.min_interval and children:
        free_ms = max(child.last_ms for child in children) + policy.min_interval
        if free_ms > start_ms:
            interval = format_duration(policy.min_interval)
            start_ms = free_ms
            why = f"The last one is less than minInterval ({interval}) ago."
    window = policy.maintenance_window
    if window is None:
        return start_ms, why
    if not _is_open(policy, start_ms):
        start_ms = next_opening(window.start, window.time_zone, start_ms)
        hours = f"{window.start} for {format_duration(window.duration)}, {window.time_zone}"
        why = f"Outside the maintenance window ({hours})."
    return start_ms, why


def _is_open(policy: AutomaticCompaction, at_ms: int) -> bool:
    """Whether the maintenance window, if there is one, is open."""
    window = policy.maintenance_window
    return window is None or is_open(window.start, window.duration, window.time_zone, at_ms)


def _blocker(first: ChildCompaction, children: Sequence[ChildState]) -> ChildState | None:
    """The child at work that must end, or plan, before `first` can start."""
    at_work = sorted((c for c in children if c.at_work), key=lambda c: (c.created_ms, c.name))
    if first.line == MINOR_LINE:
        # Its plan is not known yet, but will be shortly.
        at_work = [child for child in at_work if child.segments is None]
    elif is_of_chunks(first.line):
        # What others of chunks take is known from their spec.
        at_work = [
            child
            for child in at_work
            if not is_of_chunks(child.line) and (child.line != MINOR_LINE or child.segments is None)
        ]
    return at_work[0] if at_work else None


def _expected(
    policy: AutomaticCompaction,
    children: Sequence[ChildState],
    waiting: Sequence[CompactionCandidate],
    states: Sequence[ScheduleState],
) -> tuple[int | None, str, str]:
    """The next start by the clock alone, what starts, and why it must wait."""
    found = [
        (_earliest(policy, children, each.ready_ms)[0], each.child.what, each.why)
        for each in waiting
    ]
    for state in states:
        if state.next_ms is not None:
            ready_ms, why, _ = _after_failed_run(children, state.line)
            start_ms, _ = _earliest(policy, children, max(state.next_ms, ready_ms))
            found.append((start_ms, _what(state), why if ready_ms > state.next_ms else ""))
    return min(found, default=(None, "", ""), key=lambda each: each[0] or 0)
