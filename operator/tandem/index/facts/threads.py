"""Requests to a store, several at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

AT_ONCE: Final = 8

_T = TypeVar("_T")
_R = TypeVar("_R")


def each_in_threads(function: Callable[[_T], _R], items: Sequence[_T]) -> list[_R]:
    """What a function returns for each item, in their order."""
    if len(items) < 2:
        return [function(item) for item in items]
    with ThreadPoolExecutor(min(AT_ONCE, len(items)), "tandem-facts") as pool:
        return list(pool.map(function, items))
