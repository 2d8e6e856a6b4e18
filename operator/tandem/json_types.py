"""Types of parsed JSON. Must not know what the JSON means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]
JsonMapping = Mapping[str, Any]
