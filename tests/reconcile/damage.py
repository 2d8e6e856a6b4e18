"""Damaged row maps."""

from __future__ import annotations

import pytest

from tandem.errors import RowMapInvalid
from tandem.rowmap.binary_format import from_bytes


def require_damage_noticed(data: bytes) -> None:
    """No cut of a map and no map with a flipped byte can be read."""
    for size in range(len(data)):
        with pytest.raises(RowMapInvalid):
            from_bytes(data[:size])
    for place in range(len(data)):
        broken = bytearray(data)
        broken[place] ^= 0x41
        with pytest.raises(RowMapInvalid):
            from_bytes(bytes(broken))
