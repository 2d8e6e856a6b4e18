"""Names of the objects in `_delta_log` (protocol, "File Types" and "Checkpoint Naming Scheme").

Pure text: nothing here touches a store. Version numbers are zero-padded to 20 digits, so the
lexicographic order of a listing is the order of versions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

LOG = "_delta_log"
LAST_CHECKPOINT = f"{LOG}/_last_checkpoint"
SIDECARS = f"{LOG}/_sidecars"

_COMMIT = re.compile(r"(\d{20})\.json")
_CHECKSUM = re.compile(r"(\d{20})\.crc")
_COMPACTED = re.compile(r"(\d{20})\.(\d{20})\.compacted\.json")
_CLASSIC = re.compile(r"(\d{20})\.checkpoint\.parquet")
_PART = re.compile(r"(\d{20})\.checkpoint\.(\d{10})\.(\d{10})\.parquet")
_V2 = re.compile(r"(\d{20})\.checkpoint\.([0-9A-Fa-f-]{36})\.(json|parquet)")


class LogFileKind(StrEnum):
    COMMIT = "commit"
    CHECKSUM = "checksum"
    COMPACTED = "compacted"
    CLASSIC = "classic checkpoint"
    PART = "part of a checkpoint"
    V2 = "V2 checkpoint"


@dataclass(frozen=True, slots=True)
class LogFile:
    """A parsed name. `part` and `parts` are set for parts of a multi-part checkpoint (from 1); for
    a compacted file `version` is its first and `end` its last version."""

    kind: LogFileKind
    version: int
    part: int = 0
    parts: int = 0
    end: int = 0


def parse(name: str) -> LogFile | None:
    """Parse a file name within `_delta_log`; None if it is not one of the log's."""
    if match := _COMMIT.fullmatch(name):
        return LogFile(LogFileKind.COMMIT, int(match[1]))
    if match := _CLASSIC.fullmatch(name):
        return LogFile(LogFileKind.CLASSIC, int(match[1]))
    if match := _PART.fullmatch(name):
        return LogFile(LogFileKind.PART, int(match[1]), int(match[2]), int(match[3]))
    if match := _V2.fullmatch(name):
        return LogFile(LogFileKind.V2, int(match[1]))
    if match := _COMPACTED.fullmatch(name):
        return LogFile(LogFileKind.COMPACTED, int(match[1]), end=int(match[2]))
    if match := _CHECKSUM.fullmatch(name):
        return LogFile(LogFileKind.CHECKSUM, int(match[1]))
    return None


def commit_path(version: int) -> str:
    return f"{LOG}/{version:020d}.json"


def checkpoint_path(version: int) -> str:
    return f"{LOG}/{version:020d}.checkpoint.parquet"


def listing_start(version: int) -> str:
    """A path that sorts just before every object of `version`."""
    return f"{LOG}/{version:020d}"
