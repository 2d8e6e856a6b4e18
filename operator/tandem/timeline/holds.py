"""Holds: pins of versions by readers, each with an end.

    _tandem/holds/<version>-<seconds>-<nonce>.hold

A hold lasts so many seconds from its time in the store: no clock of a reader counts, and a listing
is enough for cleaning. Pure text; `tandem.index.window` places them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

HOLDS: Final = "_tandem/holds"
LONGEST_S: Final = 7 * 86_400
"""No hold lasts longer, whatever its name says."""

_NAME = re.compile(rf"{HOLDS}/(\d{{1,19}})-(\d{{1,9}})-[0-9a-f]{{1,64}}\.hold", re.ASCII)


@dataclass(frozen=True, slots=True)
class Hold:
    """Until `end_ms` (Unix milliseconds), cleaning keeps what was live at a version."""

    version: int
    end_ms: int
    path: str


def path_of(version: int, seconds: int, nonce: str) -> str:
    """The path of a hold, relative to the table. `nonce`: hexadecimal digits, unique."""
    return f"{HOLDS}/{version}-{seconds}-{nonce}.hold"


def hold_at(path: str, written_ms: int) -> Hold | None:
    """The hold that a file is, by the time at which it was written; None for another file."""
    match = _NAME.fullmatch(path)
    if match is None:
        return None
    seconds = min(int(match[2]), LONGEST_S)
    return Hold(int(match[1]), written_ms + seconds * 1000, path)
