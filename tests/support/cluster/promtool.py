"""Prometheus' own check of metrics, rules and expressions, built from its pinned source."""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path

_BUILD = Path(__file__).resolve().parents[3] / "tools" / "build-promtool.sh"


@cache
def _program() -> str:
    done = subprocess.run([_BUILD], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def promtool(*arguments: str | Path, text: str | None = None) -> None:
    """Run it; fails with what it says unless it is content."""
    done = subprocess.run(
        [_program(), *arguments], input=text, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
