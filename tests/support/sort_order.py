"""The order in which a sort writes values: slow and obvious."""

from __future__ import annotations

import math
from typing import Any


def sort_key(value: Any) -> Any:
    """Null last, before it what is not a number; texts by their bytes."""
    if value is None:
        return (2, 0)
    if isinstance(value, float) and math.isnan(value):
        return (1, 0)
    return (0, value.encode() if isinstance(value, str) else value)
