"""Log writers as processes that are killed: `python -m mergelog.storm.writers LOCATION OPTIONS`.

A starter imports the engine once and forks a process for each order on its standard input. Each
process appends the batches of one writer, from a number on, until it is stopped, and says on the
shared standard output what it begins and what was acknowledged. `WriterProcesses` is the test's end
of the pipe. Everything is JSON, a line each.
"""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mergelog.storm.batches import Batch, name_of
from tandem import mergelog

_TESTS = Path(__file__).resolve().parents[2]
LIMIT_S = 60.0

Said = dict[str, Any]


@dataclass
class WriterProcesses:
    """Starts and kills writers. `living` has the pid of each that lives, by number."""

    location: str
    options: Mapping[str, str]
    living: dict[int, int] = field(default_factory=dict)
    _lines: queue.Queue[str] = field(default_factory=queue.Queue)

    def __post_init__(self) -> None:
        paths = [str(_TESTS.parent / "operator"), str(_TESTS)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, self.location, json.dumps(dict(self.options))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            text=True,
        )
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def start(self, writer: int, batch: int) -> None:
        """A process appends the batches of a writer, from this one on."""
        self._order({"writer": writer, "batch": batch})

    def kill(self, writer: int) -> None:
        os.kill(self.living[writer], signal.SIGKILL)

    def stop(self) -> None:
        """Each writer ends after the append that it is at."""
        self._order({"stop": True})

    def heard(self) -> Said:
        """What is said next; `living` is up to date with it."""
        said: Said = json.loads(self._lines.get(timeout=LIMIT_S))
        if "pid" in said:
            self.living[said["writer"]] = said["pid"]
        elif "ended" in said:
            del self.living[said["writer"]]
        elif "closed" in said:
            raise AssertionError("the starter has ended")
        return said

    def close(self) -> None:
        """End everything that a test, also one that failed, has left."""
        for pid in self.living.values():
            os.kill(pid, signal.SIGKILL)
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(LIMIT_S)
        self._listener.join(LIMIT_S)

    def _order(self, order: Said) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._lines.put(line)
        self._lines.put('{"closed": 1}')


# The other end of the pipe ------------------------------------------------------------------


def _say(**what: Any) -> None:
    """One write, so that a line is there as a whole or not at all."""
    os.write(1, (json.dumps(what) + "\n").encode())


def _append_all(location: str, options: dict[str, str], writer: int, batch: int, stop: int) -> None:
    log = mergelog.open_log(location, options)
    ordering = mergelog.MergedView.open(log).settings.ordering_column
    with mergelog.LogWriter(log, name_of(writer)) as appending:
        while not select.select([stop], [], [], 0)[0]:
            _say(writer=writer, begins=batch)
            upserts, deletes = Batch(writer, batch).tables(ordering)
            done = appending.append(upserts, deletes, batch=batch)
            _say(writer=writer, batch=batch, instant=done.instant, repeated=done.repeated)
            batch += 1


def _child(location: str, options: dict[str, str], order: Said, stop: int) -> int:
    try:
        _append_all(location, options, order["writer"], order["batch"], stop)
    except BaseException:  # noqa: BLE001 - the border of the process
        traceback.print_exc()
        return 1
    return 0


def main() -> None:
    """Fork a process for each order; report each end."""
    location, options = sys.argv[1], json.loads(sys.argv[2])
    stopped, stop = os.pipe()  # the writers see its end
    writers: dict[int, int] = {}
    ordered = True
    pending = b""
    while ordered or writers:
        if ordered and select.select([0], [], [], 0.02)[0]:
            read = os.read(0, 65_536)
            ordered = bool(read)
            *lines, pending = (pending + read).split(b"\n")
            for order in map(json.loads, lines):
                if "stop" in order:
                    os.close(stop)
                    continue
                pid = os.fork()
                if pid == 0:
                    os.close(stop)
                    os._exit(_child(location, options, order, stopped))
                writers[pid] = order["writer"]
                _say(writer=order["writer"], pid=pid)
        while writers:
            pid, how = os.waitpid(-1, 0 if not ordered else os.WNOHANG)
            if not pid:
                break
            _say(writer=writers.pop(pid), ended=os.waitstatus_to_exitcode(how))


if __name__ == "__main__":
    main()
