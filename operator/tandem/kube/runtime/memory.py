"""How much memory a child process may take by default, by the memory that this process has."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tandem.spark.runtime.session import memory_here

_OF_POD: Final = 2
"""Half of a pod's memory: the operator itself, and its other children, share the rest."""
_OF_MACHINE: Final = 4


def default_table_memory(root: Path = Path("/"), machine: int | None = None) -> int:
    """Bytes: half of the pod's limit, or a quarter of the machine's memory without one.

    Args:
        root: where the file system begins, for tests.
        machine: its memory in bytes; None for that of this machine.
    """
    memory, limited = memory_here(root, machine)
    return memory // (_OF_POD if limited else _OF_MACHINE)
