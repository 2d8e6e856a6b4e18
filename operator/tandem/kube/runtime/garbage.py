"""How often Python looks for garbage in cycles: a tenth of an operator's CPU time by default.

What was imported never becomes garbage, and is a hundred thousand objects. What an operation
leaves in cycles (tasks and their exceptions, mostly) is small.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_NEW_OBJECTS: Final = 10_000
"""So many new objects, instead of 700, before the youngest ones are looked at: a few megabytes."""
_YOUNG: Final = 3
"""Those that survive are looked at again after so many times, instead of 10. No thread runs
meanwhile, and a hundred thousand objects took 50 to 200 ms."""
_MIDDLE: Final = 30
"""All are looked at after so many times of that, instead of 10: about as seldom as before."""


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
