"""A child and what it has started: the processes of its session, whose leader it is."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL
from typing import Final

_PROC: Final = Path("/proc")
_LOOK_S: Final = 0.05
_TRIES: Final = 20


def processes_of(leader: int) -> Iterator[int]:
    """The living processes of a session, also without its leader."""
    for folder in _PROC.glob("[0-9]*") if leader else ():
        with suppress(OSError):  # it has ended
            # After the name, in which anything may be: state, parent, group, session.
            state, _, _, session, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(session) == leader and state not in ("Z", "X"):
                yield int(folder.name)


def private_bytes(leader: int) -> int:
    """Bytes that a session has for itself: what a kill gives back. 0 if it has ended."""
    return sum(map(private_bytes_of, processes_of(leader)))


def kill(leader: int) -> bool:
    """Kill all of a session. Whether there was anything to kill."""
    found = list(processes_of(leader))
    for pid in found:
        with suppress(ProcessLookupError):
            os.kill(pid, SIGKILL)
    return bool(found)


def end(leader: int, patience_s: float) -> None:
    """Wait until a session whose leader has ended has ended, too; then kill what is left of it,
    with what that may have started meanwhile."""
    until_s, pause = time.monotonic() + patience_s, threading.Event()
    while any(processes_of(leader)) and time.monotonic() < until_s:
        pause.wait(_LOOK_S)
    for _ in range(_TRIES):
        if not kill(leader):
            break
        pause.wait(_LOOK_S)


def private_bytes_of(pid: int) -> int:
    try:
        text = (_PROC / str(pid) / "smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return 0
    kinds = ("Private_Clean:", "Private_Dirty:")
    return sum(int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith(kinds))
