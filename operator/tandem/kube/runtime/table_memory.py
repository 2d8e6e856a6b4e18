"""How much memory one table may take by default, by the memory that this process has."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_OF_POD: Final = 2
"""Half of a pod's memory: the operator itself, and what it keeps of other tables, is the rest."""
_OF_MACHINE: Final = 4
_LIMITS: Final = (
    "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes",
)
"""Of a container: control groups of version 2 and 1. In its own namespace, it is the root."""


def default_table_memory(root: Path = Path("/"), machine: int | None = None) -> int:
    """Bytes: half of the pod's limit, or a quarter of the machine's memory without one.

    Args:
        root: where the file system begins, for tests.
        machine: its memory in bytes; None for that of this machine.
    """
    if machine is None:
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for path in _LIMITS:
        limit = _number(root / path.lstrip("/"))
        # Version 1 says a huge number for none.
        if limit is not None and 0 < limit < machine:
            return limit // _OF_POD
    return machine // _OF_MACHINE


def _number(path: Path) -> int | None:
    try:
        text = path.read_text().strip()
    except OSError:
        return None  # no such control group
    return int(text) if text.isdecimal() else None
