"""What we may do to a table, by its protocol features."""

from __future__ import annotations

from tandem.delta.actions import Metadata, Protocol


def check_readable(protocol: Protocol, metadata: Metadata, *, resource: str) -> None:
    """placeholder"""
