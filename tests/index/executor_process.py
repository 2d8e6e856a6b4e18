"""`python -m index.executor_process SETTINGS`: an executor as a process of its own."""

from __future__ import annotations

import pickle
import sys
import threading
from pathlib import Path

from tandem.index.server.registration import run_executor

if __name__ == "__main__":
    settings, slot, beat_s = pickle.loads(Path(sys.argv[1]).read_bytes())
    run_executor(settings, slot, threading.Event(), beat_s=beat_s)
