"""Deletion vectors that Tandem reads and never writes."""

from __future__ import annotations

from pyroaring import BitMap64

from tandem.delta.actions import DeletionVector
from tandem.delta.dv import serialize, z85_encode


def encode_inline(bitmap: BitMap64) -> DeletionVector:
    """A vector in the log itself, as other writers make them (docs/decisions/0087)."""
    data = serialize(bitmap)
    return DeletionVector("i", z85_encode(data), len(data), len(bitmap))
