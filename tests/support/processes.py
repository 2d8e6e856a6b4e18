"""Ends processes that a test has started."""

from __future__ import annotations

import subprocess

PATIENCE_S = 30.0
"""Seconds that a process has to end by itself."""


def terminate(process: subprocess.Popen[bytes]) -> None:
    """Request its end, and wait for it; kill it if it does not end."""
    process.terminate()
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
