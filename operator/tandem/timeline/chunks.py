"""Time chunks: intervals of a table's time column at its granularity, always in UTC.

Weeks are ISO weeks and begin on Monday; all other chunks are those of the calendar.

`tandem.timeline.file_columns` determines the chunks that each file covers.

Which moments of a file its deletion vector hides whole: the hint in the tag `tandem.masked`.

A replace that masks an interval of a file that straddles it notes the interval here, so that plans
and `tandem timeline` see the pieces that are left (D58). The tag also holds the number of rows of
the deletion vector that it was written with: it is valid while the vector hides at least so many,
because vectors grow. A restore may bring back a smaller one; then nothing is known. A file that was
made again without these rows notes 0: it never had them.

A hint only: any writer can set tags, and none decides which rows are live.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache

from tandem.errors import InvalidSpec
from tandem.intervals import ALWAYS, NEVER, IntervalSet, TimeInterval
from tandem.spec.table import Granularity

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class TimeColumn:
    """A table's time column: `path` is its physical name (one part per level of nesting), as
    statistics and partition values are keyed; `partition` says that it is a partition column,
    `type` whether it is a date, timestamp or timestamp_ntz."""

    path: tuple[str, ...]
    granularity: Granularity
    partition: bool = False
    type: str = "timestamp"


def chunk_of(moment: datetime, granularity: Granularity) -> TimeInterval:
    """The chunk that contains a moment. Raises: OverflowError, ValueError at the calendar's end."""
    if granularity is Granularity.ALL:
        return ALWAYS
    start, end = _borders(moment, granularity)
    return TimeInterval(_ms(start), _ms(end))


def is_one_chunk(interval: TimeInterval, granularity: Granularity) -> bool:
    if granularity is Granularity.ALL:
        return True
    try:
        return chunk_of(_EPOCH + interval.start_ms * _MILLISECOND, granularity) == interval
    except (OverflowError, ValueError):  # outside the calendar's range of years
        return False


def label(interval: TimeInterval, granularity: Granularity) -> str:
    """The displayed name: `2013-02`; an ISO 8601 interval if it covers several chunks."""
    if interval == ALWAYS or granularity is Granularity.ALL:
        return "all"
    if not is_one_chunk(interval, granularity):
        return str(interval)
    moment = _EPOCH + interval.start_ms * _MILLISECOND
    text = moment.isoformat()
    year, week, _ = moment.isocalendar()
    return {
        Granularity.HOUR: text[:13],
        Granularity.DAY: text[:10],
        Granularity.WEEK: f"{year:04}-W{week:02}",
        Granularity.MONTH: text[:7],
        Granularity.QUARTER: f"{moment.year:04}-Q{(moment.month + 2) // 3}",
        Granularity.YEAR: text[:4],
    }[granularity]


_FINER = re.compile(r"[.,][0-9]{3}[0-9]*[1-9]")
"""Digits of a time beyond its milliseconds."""


def parse_interval(text: str) -> TimeInterval | None:
    """The interval that a text (`start/end`) holds, None if it holds none, or one that does not
    begin and end at whole milliseconds: to cut a border would move it over rows."""
    start, slash, end = text.partition("/")
    if _FINER.search(text):
        return None
    low, high = _moment(start), _moment(end)
    if not slash or low is None or high is None or high <= low:
        return None
    return TimeInterval(_ms(low), _ms(high))


def parse_moment(text: str) -> int | None:
    """The moment, in Unix milliseconds, that a date, a time or the label of a chunk begins with;
    None if it is none of these."""
    chunk = None if "/" in text else _parse_label(text)
    if chunk is not None and chunk != ALWAYS:
        return chunk.start_ms
    moment = _moment(text)
    return None if moment is None else _ms(moment)


_LABELS = (
    (re.compile(r"\d{4}"), Granularity.YEAR, "{}-01-01"),
    (re.compile(r"\d{4}-\d{2}"), Granularity.MONTH, "{}-01"),
    (re.compile(r"\d{4}-\d{2}-\d{2}"), Granularity.DAY, "{}"),
    (re.compile(r"\d{4}-\d{2}-\d{2}T\d{2}"), Granularity.HOUR, "{}:00"),
)


def parse_chunk(text: str, granularity: Granularity, *, resource: str = "") -> TimeInterval:
    """The interval that a request names: `2013`, `2013-Q1`, `2013-02`, `2013-W05`,
    `2013-02-01`, `2013-02-01T05`, `all` or `start/end`.

    It must consist of whole chunks of `granularity`. Raises: InvalidSpec, which names `resource`.
    """
    interval = _parse_label(text)
    if interval is None:
        problem = "This is not a time chunk"
        expected = "2013, 2013-Q1, 2013-02, 2013-W05, 2013-02-01, 2013-02-01T05 or start/end"
    elif interval == ALWAYS or _is_whole(interval, granularity):
        return interval
    else:
        problem = "This interval does not hold whole chunks of the table"
        expected = f"whole chunks of granularity {granularity}"
    raise InvalidSpec(
        problem,
        resource=resource,
        field="spec.semiMajor.chunks",
        found=text,
        expected=expected,
        remedy="Name chunks as `tandem table segments` shows them.",
    )


def parse_any_interval(text: str) -> TimeInterval | None:
    """The interval that a text names, at any grain: as for `parse_chunk`. None if it names none,
    or one that holds no millisecond."""
    found = _parse_label(text.strip())
    return found if found is not None and found.start_ms < found.end_ms else None


def components(intervals: Iterable[TimeInterval]) -> dict[TimeInterval, TimeInterval]:
    """Group intervals that belong together because one of them spans others: each interval → the
    hull of its group. Adjacent chunks stay separate."""
    groups: list[tuple[TimeInterval, list[TimeInterval]]] = []
    for interval in sorted(set(intervals)):
        if groups and groups[-1][0].overlaps(interval):
            hull, members = groups[-1]
            wider = TimeInterval(hull.start_ms, max(hull.end_ms, interval.end_ms))
            groups[-1] = (wider, [*members, interval])
        else:
            groups.append((interval, [interval]))
    return {member: hull for hull, members in groups for member in members}


def _is_whole(interval: TimeInterval, granularity: Granularity) -> bool:
    if granularity is Granularity.ALL:
        return False
    try:
        first = chunk_of(_EPOCH + interval.start_ms * _MILLISECOND, granularity)
        last = chunk_of(_EPOCH + (interval.end_ms - 1) * _MILLISECOND, granularity)
    except (OverflowError, ValueError):
        return False
    return first.start_ms == interval.start_ms and last.end_ms == interval.end_ms


def _parse_label(text: str) -> TimeInterval | None:
    if text.lower() == "all":
        return ALWAYS
    if "/" in text:
        return parse_interval(text)
    try:
        if match := re.fullmatch(r"(\d{4})-Q([1-4])", text):
            month = int(match[2]) * 3 - 2
            return chunk_of(datetime(int(match[1]), month, 1, tzinfo=UTC), Granularity.QUARTER)
        if match := re.fullmatch(r"(\d{4})-W(\d{2})", text):
            monday = date.fromisocalendar(int(match[1]), int(match[2]), 1)
            moment = datetime(monday.year, monday.month, monday.day, tzinfo=UTC)
            return chunk_of(moment, Granularity.WEEK)
        for pattern, granularity, form in _LABELS:
            if pattern.fullmatch(text):
                start = datetime.fromisoformat(form.format(text)).replace(tzinfo=UTC)
                return chunk_of(start, granularity)
    except (OverflowError, ValueError):
        return None
    return None


def _borders(moment: datetime, granularity: Granularity) -> tuple[datetime, datetime]:
    hour = moment.replace(minute=0, second=0, microsecond=0)
    day = hour.replace(hour=0)
    if granularity is Granularity.HOUR:
        return hour, hour + timedelta(hours=1)
    if granularity is Granularity.DAY:
        return day, day + timedelta(days=1)
    if granularity is Granularity.WEEK:
        monday = day - timedelta(days=day.weekday())
        return monday, monday + timedelta(days=7)
    if granularity is Granularity.YEAR:
        return day.replace(month=1, day=1), day.replace(year=day.year + 1, month=1, day=1)
    months = 3 if granularity is Granularity.QUARTER else 1
    first = (day.month - 1) // months * months + 1
    start = day.replace(month=first, day=1)
    if first + months > 12:
        return start, start.replace(year=start.year + 1, month=1)
    return start, start.replace(month=first + months)


def _moment(value: str) -> datetime | None:
    """A date or time in ISO 8601; in UTC if it has no zone."""
    try:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            return moment.replace(tzinfo=UTC)
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _ms(moment: datetime) -> int:
    return (moment - _EPOCH) // _MILLISECOND


TAG_MASKED = "tandem.masked"

_FORM = re.compile(r"(0|[1-9][0-9]{0,17}) (.+)")


def format_masked(masked: IntervalSet, cardinality: int) -> str:
    """The value of the tag: `120 2013-03-02T00:00:00Z/2013-03-03T00:00:00Z,…`.

    Args:
        cardinality: rows that the file's deletion vector hides in all; 0 if the file lacks them.
    """
    return f"{cardinality} {_text(masked)}"


@lru_cache(maxsize=16)  # a replace masks the same intervals of all files
def _text(masked: IntervalSet) -> str:
    return ",".join(map(str, masked))


def parse_masked(text: str, cardinality: int) -> IntervalSet:
    """The intervals in which a file has no live row; none if the tag is invalid or outdated.

    Args:
        cardinality: rows that the file's deletion vector hides now.
    """
    match = _FORM.fullmatch(text)
    if match is None or int(match[1]) > cardinality:
        return NEVER
    found = [parse_interval(each) for each in match[2].split(",")]
    return IntervalSet(each for each in found if each is not None)
