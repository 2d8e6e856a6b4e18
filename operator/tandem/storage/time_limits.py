"""How long one request of a store may take, retries and all. Pure.

Without a ceiling, options decide. With one, no request takes longer: the time for retries is what
the ceiling leaves after the last try and the pause before it. Requests for credentials, which may
precede it, have the same limits.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

TRY_S: Final = 30.0
"""For one try, where the options name no `timeout`."""
CONNECT_S: Final = 5.0
RETRY_S: Final = 60.0
"""How long a request is retried without a ceiling: short enough for interactive use."""
_PAUSE_S: Final = 5.0
_LONGEST_S: Final = 366 * 86_400.0
_PART = r"(\d{1,15}(?:\.\d{1,9})?) ?([a-zA-Z]+) ?"
_WHOLE = re.compile(f"(?:{_PART})+", re.ASCII)
_UNITS_S: Final[Mapping[str, float]] = {
    unit: seconds
    for units, seconds in (
        ("nsec ns", 1e-9),
        ("usec us", 1e-6),
        ("msec ms", 1e-3),
        ("seconds second sec s", 1.0),
        ("minutes minute min m", 60.0),
        ("hours hour hr h", 3_600.0),
        ("days day d", 86_400.0),
        ("weeks week w", 604_800.0),
    )
    for unit in units.split()
}


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Of one request: `one_try` and `connect` of each try, `retries` from the first begin on after
    which there is no further try, `pause` before a further try at most."""

    one_try: timedelta
    connect: timedelta
    retries: timedelta
    pause: timedelta

    @property
    def total_s(self) -> float:
        """The longest that a request can take."""
        return (self.one_try + self.retries + self.pause).total_seconds()


def seconds_of(text: str) -> float | None:
    """The seconds of a duration such as `30s` or `1m 30s`; None if it is none, is nothing, or is
    longer than a year."""
    if not _WHOLE.fullmatch(text):
        return None
    found = 0.0
    for number, unit in re.findall(_PART, text):
        if unit not in _UNITS_S:
            return None
        found += float(number) * _UNITS_S[unit]
    return found if 1e-3 <= found <= _LONGEST_S else None


def time_limits(client: Mapping[str, object], ceiling_s: float | None = None) -> TimeLimits:
    """The limits of a request.

    Args:
        client: the checked options `timeout` and `connect_timeout`, neither beyond the ceiling.
        ceiling_s: for the request as a whole, in seconds; None for none.
    """
    try_s = seconds_of(str(client.get("timeout", ""))) or min(TRY_S, (ceiling_s or 2 * TRY_S) / 2)
    connect_s = seconds_of(str(client.get("connect_timeout", ""))) or min(CONNECT_S, try_s)
    pause_s, retry_s = _PAUSE_S, RETRY_S
    if ceiling_s is not None:
        # A `timeout` that takes all leaves no time to try again.
        pause_s = min(_PAUSE_S, max(0.0, ceiling_s - try_s) / 2)
        retry_s = max(0.0, ceiling_s - try_s - pause_s)
    return TimeLimits(
        timedelta(seconds=try_s),
        timedelta(seconds=connect_s),
        timedelta(seconds=retry_s),
        timedelta(seconds=pause_s),
    )
