"""Times of day in a zone: when a schedule fires, when a maintenance window is open.

Pure: times are Unix milliseconds, zones and cron are tables and arithmetic. Cron means the same as
in a CronJob and in Debian, including Debian's rule for the two days a year on which clocks are
changed: a fixed time that is skipped comes right after the gap, one that occurs twice counts once;
`*` fields follow real time. (Where clocks change by half an hour, which is on Lord Howe Island,
cronsim may be wrong about the latter on that day.)
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim

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
