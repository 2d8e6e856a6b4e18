"""Objects as the API server gives them, in as few words as a test of `kubectl tandem` needs."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

Json = dict[str, Any]
NOW = 1_800_000_000_000  # 2027-01-15T08:00:00Z


def body(kind: str, name: str, status: Json | None = None, **spec: Any) -> Json:
    metadata: Json = {"name": name, "namespace": "n", "creationTimestamp": "2027-01-15T07:00:00Z"}
    metadata |= spec.pop("metadata", {})
    if kind != "LakeTable":
        spec["tableRef"] = {"name": "t"}
    return {"kind": kind, "metadata": metadata, "spec": spec, "status": status or {}}


def state(phase: str, reason: str, message: str = "", **status: Any) -> Json:
    truth = {"Succeeded": "True", "Failed": "False"}.get(phase, "Unknown")
    condition = {"type": "Succeeded", "status": truth, "reason": reason, "message": message}
    return {"observedGeneration": 1, "phase": phase, "conditions": [condition], **status}


def table(ready: str = "True", reason: str = "Adopted", message: str = "", **status: Any) -> Json:
    conditions = [
        {"type": "Ready", "status": ready, "reason": reason, "message": message},
        {"type": "Stalled", "status": "False" if ready == "True" else "True"},
    ]
    return body("LakeTable", "t", {"observedGeneration": 1, "conditions": conditions, **status})


def shown(rendered: Any) -> str:
    console = Console(file=io.StringIO(), width=140)
    console.print(rendered)
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]
