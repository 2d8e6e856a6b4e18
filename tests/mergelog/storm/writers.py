"""Log writers as processes that are killed.

`python -m mergelog.storm.writers LOCATION OPTIONS REST`: a starter imports the engine and forks
a process for each order on its standard input. Each process appends the batches of one writer, from
a number on, until it is stopped, and says on the shared standard output what it begins and what was
acknowledged. `WriterProcesses` is the test's end of the pipe. Everything is JSON, a line each.
"""

from __future__ import annotations

import json
import os
import queue
import random
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
from tandem.mergelog import LogWriter, MergedView, open_log

_TESTS = Path(__file__).resolve().parents[2]
LIMIT_S = 120.0

Message = dict[str, Any]


@dataclass
class WriterProcesses:
    """Starts and kills writers. Each rests for up to `rest_s` between two appends. `living` are the
    numbers of those that live and are not to be killed, `running` also has the others until their
    end was heard."""

    location: str
    options: Mapping[str, str]
    rest_s: float = 0.0
    living: set[int] = field(default_factory=set)
    running: set[int] = field(default_factory=set)
    _lines: queue.Queue[str] = field(default_factory=queue.Queue)

    def __post_init__(self) -> None:
        paths = [str(_TESTS.parent / "operator"), str(_TESTS)]
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                __name__,
                self.location,
                json.dumps(dict(self.options)),
                str(self.rest_s),
            ],
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
        """By SIGKILL. The starter does it: it knows which process has the number still."""
        self.living.remove(writer)
        self._order({"kill": writer})

    def stop(self) -> None:
        """Each writer ends after the append that it is at."""
        self._order({"stop": True})

    def heard(self) -> Message:
        """The next message; `living` is up to date with it."""
        message: Message = json.loads(self._lines.get(timeout=LIMIT_S))
        if "started" in message:
            self.living.add(message["writer"])
            self.running.add(message["writer"])
        elif "ended" in message:
            self.living.discard(message["writer"])
            self.running.discard(message["writer"])
        elif "closed" in message:
            raise AssertionError("the starter has ended")
        return message

    def close(self) -> None:
        """End everything that a test, also one that failed, has left."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(LIMIT_S)
        self._listener.join(LIMIT_S)

    def _order(self, order: Message) -> None:
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


@dataclass(frozen=True)
class _Place:
    location: str
    options: dict[str, str]
    rest_s: float


def _say(**what: Any) -> None:
    """One write, so that a line is there as a whole or not at all."""
    os.write(1, (json.dumps(what) + "\n").encode())


def _append_all(table: _Place, writer: int, batch: int, stop: int) -> None:
    log = open_log(table.location, table.options)
    ordering = MergedView.open(log).settings.ordering_column
    with LogWriter(log, name_of(writer)) as appending:
        while not select.select([stop], [], [], random.uniform(0, table.rest_s))[0]:
            _say(writer=writer, begins=batch)
            upserts, deletes = Batch(writer, batch).tables(ordering)
            done = appending.append(upserts, deletes, batch=batch)
            _say(writer=writer, batch=batch, instant=done.instant, repeated=done.repeated)
            batch += 1


def _child(table: _Place, order: Message, stop: int) -> int:
    try:
        _append_all(table, order["writer"], order["batch"], stop)
    except BaseException:  # noqa: BLE001 - the border of the process
        traceback.print_exc()
        return 1
    return 0


class _Starter:
    def __init__(self, table: _Place) -> None:
        self._table = table
        self._stopped, self._stop = os.pipe()  # the writers see its end
        self._writers: dict[int, int] = {}

    def obey(self, order: Message) -> None:
        if "stop" in order:
            os.close(self._stop)
        elif "kill" in order:
            self.kill(order["kill"])
        else:
            pid = os.fork()
            if pid == 0:
                os.close(self._stop)
                os._exit(_child(self._table, order, self._stopped))
            self._writers[pid] = order["writer"]
            _say(writer=order["writer"], started=pid)

    def kill(self, writer: int | None = None) -> None:
        """One writer, or all. Each process is there until `reap` has seen its end."""
        for pid, number in self._writers.items():
            if writer in (None, number):
                os.kill(pid, signal.SIGKILL)

    def reap(self, *, wait: bool) -> None:
        """Report the ends of writers."""
        while self._writers:
            pid, how = os.waitpid(-1, 0 if wait else os.WNOHANG)
            if not pid:
                return
            _say(writer=self._writers.pop(pid), ended=os.waitstatus_to_exitcode(how))


def main() -> None:
    """Obey until there are no more orders."""
    starter = _Starter(_Place(sys.argv[1], json.loads(sys.argv[2]), float(sys.argv[3])))
    pending = b""
    while True:
        if select.select([0], [], [], 0.02)[0]:
            read = os.read(0, 65_536)
            if not read:
                break
            *lines, pending = (pending + read).split(b"\n")
            for order in map(json.loads, lines):
                starter.obey(order)
        starter.reap(wait=False)
    starter.kill()
    starter.reap(wait=True)


if __name__ == "__main__":
    main()
