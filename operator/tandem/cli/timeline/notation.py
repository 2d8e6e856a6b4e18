"""Versions in the notation of the Druid analysis.

    v44: (-0.1[2013-03-02/2013-03-05) +12) [0.1, 12]

In parentheses what the version took and added, in brackets its working set: the segments that a
reader of it sees.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tandem.cli.timeline.model import SegmentChange, VersionLine
from tandem.intervals import ALWAYS, IntervalSet, TimeInterval
from tandem.text import counted

MOST_NAMES = 12
"""Segments named of one working set, and of each half of a change set."""


def version_text(line: VersionLine) -> str:
    """One line for one version."""
    parts = [f"v{line.version}:"]
    if line.changes is not None:
        took = [_took(each) for each in line.changes if each.took]
        gave = [_gave(each) for each in line.changes if each.gave]
        parts.append(f"({' '.join([*_few(took), *_few(gave)])})")
    parts.append(f"[{', '.join(_few(line.working_set))}]")
    return " ".join(parts)


def short(interval: TimeInterval) -> str:
    """An interval without the parts of its times that are zero: `2013-03-02/2013-03-05`."""
    if interval == ALWAYS:
        return "all"
    return "/".join(
        re.sub(r"T00:00:00Z$|:00Z$", lambda part: "" if "T" in part[0] else "Z", end)
        for end in str(interval).split("/")
    )


def _took(change: SegmentChange) -> str:
    if change.whole:
        return f"-{change.name}"
    details = []
    if change.files_removed:
        details.append(f"{change.files_removed} of {counted(change.files_before, 'file')}")
    if change.masked:
        details.append(_intervals(change.masked))
    elif change.rows_masked:
        details.append(counted(change.rows_masked, "row"))
    return f"-{change.name}[{', '.join(details)}{')' if change.masked else ']'}"


def _gave(change: SegmentChange) -> str:
    if change.files_before == change.files_removed:
        return f"+{change.name}"
    details = []
    if change.files_added:
        details.append(counted(change.files_added, "file"))
    if change.rows_restored:
        details.append(counted(change.rows_restored, "row"))
    return f"+{change.name}[{', '.join(details)}]"


def _intervals(intervals: IntervalSet) -> str:
    return ", ".join(_few([short(each) for each in intervals]))


def _few(texts: Sequence[str]) -> list[str]:
    if len(texts) <= MOST_NAMES:
        return list(texts)
    return [*texts[: MOST_NAMES - 1], f"… {len(texts) - MOST_NAMES + 1} more"]
