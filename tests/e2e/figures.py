"""What `make e2e` measures: collected by its tests, shown as tables, kept beside the logs."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from e2e.install import OPERATOR, SYSTEM
from e2e.target import CACHE, Target

MIB = 1 << 20


@dataclass
class Figures:
    """Seconds by step and run; lines of text beside them."""

    runs: dict[str, dict[str, float]] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)

    def begin(self, target: Target) -> None:
        ours = f"a node of our own, {os.cpu_count()} cores, {platform.machine()}"
        self.fact("where", ours if target.node else "a cluster elsewhere")
        if target.image_bytes is not None:
            self.fact("image", f"{target.image_bytes / MIB:.0f} MiB unpacked")

    def run(self, name: str, seconds: dict[str, float]) -> None:
        self.runs[name] = seconds

    def fact(self, name: str, text: str) -> None:
        self.facts[name] = text

    def resident(self, target: Target) -> None:
        """Memory that our operator holds, and what the node's own parts hold."""
        pods = target.kube.pods(SYSTEM, OPERATOR)
        if pods:
            status = target.kube(
                "exec", "-n", SYSTEM, pods[0]["metadata"]["name"], "--",
                "cat", "/proc/1/status",
            )  # fmt: skip
            self.fact("operator's memory (RSS)", f"{_resident(status) / MIB:.0f} MiB")
        if target.node is not None:
            total = sum(target.node.resident().values())
            self.fact("the node's own parts (RSS)", f"{total / MIB:.0f} MiB")

    def show(self) -> None:
        """Print it all, and keep it as text and JSON."""
        text = self.text()
        logs = CACHE / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        stamp = f"{datetime.now(UTC):%Y%m%d-%H%M%S}"
        (logs / f"e2e-{stamp}.txt").write_text(text)
        kept: dict[str, Any] = {"runs": self.runs, "facts": self.facts}
        (logs / f"e2e-{stamp}.json").write_text(json.dumps(kept, indent=1))
        os.write(1, f"\n{text}\nKept as {logs}/e2e-{stamp}.txt\n".encode())

    def text(self) -> str:
        lines = [f"{name}: {text}" for name, text in self.facts.items()]
        steps = list(dict.fromkeys(step for run in self.runs.values() for step in run))
        if steps:
            width = max(map(len, steps))
            lines += ["", f"{'seconds':<{width}}" + "".join(f"  {name:>14}" for name in self.runs)]
        for step in steps:
            cells = (
                f"{run[step]:>14.1f}" if step in run else " " * 14 for run in self.runs.values()
            )
            lines.append((f"{step:<{width}}" + "".join(f"  {cell}" for cell in cells)).rstrip())
        return "\n".join(lines) + "\n"


def _resident(status: str) -> int:
    for line in status.splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ValueError("no VmRSS in /proc/1/status")
