"""Which moments of a file its deletion vector hides whole: the hint in the tag `tandem.masked`.

A replace that masks an interval of a file that straddles it notes the interval here, so that plans
and `tandem timeline` see the pieces that are left (D58). The tag also holds the number of rows of
the deletion vector that it was written with: it is valid while the vector hides at least so many,
because vectors grow. A restore may bring back a smaller one; then nothing is known. A file that was
made again without these rows notes 0: it never had them.

A hint only: any writer can set tags, and none decides which rows are live.
"""

from __future__ import annotations

import re
from functools import lru_cache

from tandem.intervals import NEVER, IntervalSet
from tandem.timeline.chunks import parse_interval

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
