"""Values that may be missing, and in a test are not."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def present(found: T | None) -> T:
    """It is there."""
    assert found is not None
    return found
