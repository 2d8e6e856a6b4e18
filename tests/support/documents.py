"""Resources as documents, as a user writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tandem.spec.common import API_VERSION


def document(kind: str, name: str, spec: Mapping[str, Any], **metadata: str) -> dict[str, Any]:
    """A manifest of ours."""
    metadata = {"name": name, **metadata}
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": dict(spec)}
