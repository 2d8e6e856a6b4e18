"""How often Python looks for garbage in cycles, a tenth of an operator's CPU time by default, and
when free memory is given back to the system.

What was imported never becomes garbage, and is a hundred thousand objects. What an operation
leaves in cycles (tasks and their exceptions, mostly) is small.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tandem.spark.runtime.session import memory_here

_NEW_OBJECTS: Final = 10_000
"""So many new objects, instead of 700, before the youngest ones are looked at: a few megabytes."""
_YOUNG: Final = 3
"""Those that survive are looked at again after so many times, instead of 10. No thread runs
meanwhile, and a hundred thousand objects took 40 to 65 ms on average, beside other load."""
_MIDDLE: Final = 30
"""All are looked at after so many times of that, instead of 10: about as seldom as before."""
_FIRST_TRIM_S: Final = 5.0
_TRIM_S: Final = 600.0
"""Most is free after the start, when all resources were listed: so soon after it, and then in
growing pauses of up to ten minutes."""


@contextmanager
def seldom_collections() -> Iterator[None]:
    """Look for garbage less often in the block, and not among the objects that exist now."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, _YOUNG, _MIDDLE)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


async def give_memory_back() -> None:
    """Give the free memory of the C library back to the system now and then, until cancelled. It
    keeps pages between others that are in use, 24 MB after four thousand resources were listed.

    Takes 0.15 ms for each MB that is in use or given back the first time, and 0.04 ms later.
    Threads that allocate wait meanwhile, the event loop, too. Without effect where the C library
    is not glibc.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    pause_s = _FIRST_TRIM_S
    while trim is not None:
        await asyncio.sleep(pause_s)
        await asyncio.to_thread(trim, 0)
        pause_s = min(2 * pause_s, _TRIM_S)


# How much memory one table may take by default, by the memory that this process has.


_OF_POD: Final = 2
"""Half of a pod's memory: the operator itself, and what it keeps of other tables, is the rest."""
_OF_MACHINE: Final = 4


def default_table_memory(root: Path = Path("/"), machine: int | None = None) -> int:
    """Bytes: half of the pod's limit, or a quarter of the machine's memory without one.

    Args:
        root: where the file system begins, for tests.
        machine: its memory in bytes; None for that of this machine.
    """
    memory, limited = memory_here(root, machine)
    return memory // (_OF_POD if limited else _OF_MACHINE)
