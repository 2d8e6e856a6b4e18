"""Table properties that ask for maintenance, with Delta's defaults. No I/O.

An invalid property raises `ValueError`: maintenance then does nothing and reports that, rather
than guess how long the log is to be kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_UNITS_MS = {
    "week": 604_800_000,
    "day": 86_400_000,
    "hour": 3_600_000,
    "minute": 60_000,
    "second": 1_000,
    "millisecond": 1,
}
_SIZE = re.compile(r"(\d{1,19})\s*(?:([kmgt]?)i?b?)?", re.I)
_PIECE = re.compile(r"(\d+)\s+([a-z]+?)s?(?=\s|$)")


def interval_ms(name: str, text: str) -> int:
    """A calendar interval such as `interval 30 days` or `1 week 12 hours`, in milliseconds.
    Months and years are not accepted, as in Delta. Raises: ValueError."""
    rest = text.strip().lower().removeprefix("interval").strip()
    total, end = 0, 0
    for match in _PIECE.finditer(rest):
        unit = _UNITS_MS.get(match[2])
        if unit is None or rest[end : match.start()].strip():
            break
        total += int(match[1]) * unit
        end = match.end()
    if not rest or rest[end:].strip() or not end:
        raise ValueError(f"{name} = {text!r} is not an interval such as 'interval 30 days'")
    return total


def checkpoint_interval(configuration: Mapping[str, str]) -> int:
    """Commits between checkpoints: 10 by default, as in Spark (decision 0002)."""
    text = configuration.get("delta.checkpointInterval", "10")
    if not text.strip().isdigit() or int(text) <= 0:
        raise ValueError(f"delta.checkpointInterval = {text!r} is not a positive number")
    return int(text)


TARGET_FILE_SIZE = "delta.targetFileSize"


def target_file_size(configuration: Mapping[str, str]) -> int | None:
    """Bytes of the files that a compaction aims at: a number, or one with a unit, such as `100mb`
    (of 1024 each). None if the table does not say, or not so that it can be read: Spark never reads
    the property, and Delta Kernel ignores such a value."""
    match = _SIZE.fullmatch(configuration.get(TARGET_FILE_SIZE, "").strip())
    if match is None:
        return None
    size = int(match[1]) << 10 * " kmgt".index((match[2] or " ").lower())
    return size if 0 < size < 1 << 63 else None


def log_retention_ms(configuration: Mapping[str, str]) -> int:
    name = "delta.logRetentionDuration"
    return interval_ms(name, configuration.get(name, "interval 30 days"))


def tombstone_retention_ms(configuration: Mapping[str, str]) -> int:
    name = "delta.deletedFileRetentionDuration"
    return interval_ms(name, configuration.get(name, "interval 1 week"))


def files_kept_ms(configuration: Mapping[str, str], asked_ms: int | None) -> int:
    """How long a removed file is kept: for the longer of the table's property and `asked_ms`. The
    property's default applies only without `asked_ms`. Raises: ValueError."""
    own_ms = tombstone_retention_ms(configuration)
    if asked_ms is None:
        return own_ms
    is_set = "delta.deletedFileRetentionDuration" in configuration
    return max(asked_ms, own_ms if is_set else 0)


def cleans_log(configuration: Mapping[str, str]) -> bool:
    return flag(configuration, "delta.enableExpiredLogCleanup", default=True)


def flag(configuration: Mapping[str, str], name: str, *, default: bool) -> bool:
    """A boolean property. Raises: ValueError if it is neither true nor false."""
    text = configuration.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise ValueError(f"{name} = {text!r} is neither true nor false")
    return text == "true"
