"""Damaged row maps."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from typing import Any

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


def with_header(data: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    """A map with another header, and a checksum that fits."""
    size = struct.unpack_from("<I", data, 12)[0]
    header = json.loads(data[24 : 24 + size])
    change(header)
    text = json.dumps(header, separators=(",", ":")).encode()
    found = data[:12] + struct.pack("<I", len(text)) + data[16:24] + text + data[24 + size : -32]
    return found + hashlib.sha256(found).digest()
