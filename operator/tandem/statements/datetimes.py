"""Dates and timestamps as typed constants and as strings, in their unambiguous forms.

Spark accepts more forms; these are refused in a constant, and not used to skip files in a
comparison with a string.
"""

from __future__ import annotations

import datetime as dt
import re

_DATE = re.compile(r"(\d{4})-(\d{2})-(\d{2})", re.ASCII)
_TIMESTAMP = re.compile(
    r"(\d{4}-\d{2}-\d{2})"
    r"(?:[ T](\d{2}):(\d{2})(?::(\d{2})(?:\.(\d{1,6}))?(?: ?(Z|UTC|[+-]\d{2}:\d{2}))?)?)?",
    re.ASCII,
)
"""A zone follows seconds only: Spark accepts none after a day, or after hours and minutes
(`SparkDateTimeUtils.parseTimestampString`)."""


def parse_date(text: str) -> dt.date | None:
    """The date of the literal `DATE 'yyyy-mm-dd'`, None if the text is not a date."""
    match = _DATE.fullmatch(text)
    try:
        return dt.date(*map(int, match.groups())) if match else None
    except ValueError:
        return None


def parse_timestamp(text: str, zoned: bool) -> dt.datetime | None:
    """The value of a TIMESTAMP literal: in UTC if `zoned`, else without a zone.

    A text without a zone is in the session's, which is UTC. None if the text is not a timestamp of
    the accepted form, or has a zone although it must not.
    """
    match = _TIMESTAMP.fullmatch(text)
    day = parse_date(match[1]) if match else None
    if match is None or day is None or (match[6] and not zoned):
        return None
    try:
        time = dt.time(
            int(match[2] or 0), int(match[3] or 0), int(match[4] or 0),
            int((match[5] or "0").ljust(6, "0")),
        )  # fmt: skip
        local = dt.datetime.combine(day, time)
        if not zoned:
            return local
        zone = match[6] or "Z"
        offset = dt.timedelta()
        if zone[0] in "+-":
            hours, minutes = int(zone[1:3]), int(zone[4:6])
            if hours > 18 or minutes > 59 or hours * 60 + minutes > 18 * 60:
                return None
            offset = dt.timedelta(hours=hours, minutes=minutes) * (-1 if zone[0] == "-" else 1)
        return (local - offset).replace(tzinfo=dt.UTC)
    except (ValueError, OverflowError):
        return None
