"""Ends a local job whose engine has ended, so that a crash leaves no Spark processes running."""

from __future__ import annotations

import os
import signal
import threading
from functools import cache

PARENT = "TANDEM_PARENT_PID"
"""Environment variable of a job: the process that it must not outlive."""
CHECK_SECONDS = 1.0


def alive(pid: int) -> bool:
    """Whether a process of this machine runs: a zombie does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    # A zombie process still accepts signals, but runs nothing.
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as source:
            return source.read().rsplit(")", 1)[-1].split()[0] != "Z"
    except OSError:
        return True


@cache
def watch_parent() -> None:
    """From the first call on, end this process group when the engine that started it ends. In a
    cluster the variable is not set, and Kubernetes ends the job."""
    text = os.environ.get(PARENT)
    if not text:
        return
    parent = int(text)
    wait = threading.Event()

    def watch() -> None:
        while alive(parent):
            wait.wait(CHECK_SECONDS)
        os.killpg(os.getpgid(0), signal.SIGKILL)

    threading.Thread(target=watch, name="tandem-orphan", daemon=True).start()
