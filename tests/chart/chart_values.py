"""The values of `chart_values.yaml`, with which charts/tandem is tried."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

Json = dict[str, Any]
_FILE: Json = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
BUNDLED: Json = _FILE["bundled"]
EXTERNAL: Json = _FILE["external"]
NAMESPACES: list[str] = _FILE["namespaces"]
MATRIX: dict[str, Json] = _FILE["matrix"]
