"""Cases of which `make test` takes a part, and `make matrix` all: each takes seconds of Spark."""

from __future__ import annotations

import os
import zlib
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
EVERY_CASE = "TANDEM_EVERY_CASE"


def chosen(name: str, every: int = 3) -> bool:
    """Whether the test of that name is one of the third (or so) that does all it can."""
    return bool(os.environ.get(EVERY_CASE)) or zlib.crc32(name.encode()) % every == 0


def some(cases: Sequence[T], every: int = 3) -> list[T]:
    """The first of each `every` cases; all of them if the environment has `TANDEM_EVERY_CASE`."""
    return list(cases) if os.environ.get(EVERY_CASE) else list(cases[::every])
