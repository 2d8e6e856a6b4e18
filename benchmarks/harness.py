"""Timing: samples with their spread, and child processes in which one engine runs alone.

Each engine gets a separate process, so that its memory can be measured and no other engine's
threads, caches or JVM disturb it. A child returns JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PATHS = [str(ROOT), *(str(ROOT / part) for part in ("operator", "tests", "tools"))]


class WrongResult(Exception):
    """An engine returned wrong rows: its time does not count."""


class ChildFailed(Exception):
    """A child process ended without a result."""


@dataclass(frozen=True)
class Samples:
    """Repeated measurements of one thing, in one unit."""

    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Iterable[float]) -> Samples:
        return cls(tuple(values))

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    def map(self, change: Callable[[float], float]) -> Samples:
        return Samples.of(change(value) for value in self.values)

    def text(self, digits: int = 2) -> str:
        """`median (least to greatest)`."""
        if len(self.values) == 1:
            return f"{self.median:,.{digits}f}"
        low, high = min(self.values), max(self.values)
        return f"{self.median:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


@dataclass(frozen=True)
class Table:
    """A table of a report. Cells are text; the measurements are in `Report.raw`."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Figure:
    """A measured figure with an aim: both as text, and whether it was reached."""

    what: str
    found: str
    aim: str
    met: bool


@dataclass(frozen=True)
class Report:
    """The result of one benchmark. `checks` describe the comparisons that were made; `figures`
    have aims, and are listed at the head of the page, too."""

    name: str
    title: str
    setting: str
    tables: tuple[Table, ...]
    checks: tuple[str, ...]
    raw: Mapping[str, Any] = field(default_factory=dict)
    figures: tuple[Figure, ...] = ()


def progress(text: str) -> None:
    """Print the current measurement."""
    sys.stderr.write(f"  {time.strftime('%H:%M:%S')} {text}\n")


def without_folder(text: str, folder: Path) -> str:
    """The text without a path of this machine, for results that are kept."""
    return text.replace(str(folder), "…")


def timed(work: Callable[..., Any], *arguments: Any, **named: Any) -> tuple[float, Any]:
    """(seconds, the result of `work`)."""
    started = time.perf_counter()
    result = work(*arguments, **named)
    return time.perf_counter() - started, result


def repeat(times: int, work: Callable[[], Any]) -> Samples:
    """Seconds of each of `times` runs."""
    return Samples.of(timed(work)[0] for _ in range(times))


def peak_bytes() -> int:
    """The peak resident memory of this process.

    The kernel's high-water mark of this very address space: `ru_maxrss` of a child starts from
    its parent's value.
    """
    return _status_bytes("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def resident_bytes() -> int:
    """The current resident memory of this process."""
    return _status_bytes("VmRSS") or peak_bytes()


def cpu_s() -> float:
    """CPU time of this process and of all its descendants that live, in seconds."""
    parents: dict[int, int] = {}
    times: dict[int, float] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:  # it has ended
            continue
        parents[int(folder.name)] = int(fields[1])
        times[int(folder.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def is_ours(pid: int) -> bool:
        while pid not in (0, os.getpid()):
            pid = parents.get(pid, 0)
        return pid != 0

    return time.process_time() + sum(
        each for pid, each in times.items() if pid != os.getpid() and is_ours(pid)
    )


def _status_bytes(key: str) -> int:
    status = Path("/proc/self/status")
    if not status.is_file():
        return 0
    for line in status.read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    return 0


def start_child(
    function: Callable[..., Any], answer: Path, operator: Path | None = None, /, **arguments: Any
) -> subprocess.Popen[bytes]:
    """Start a child that calls `function` (module level, JSON in and out), on the package in the
    folder `operator`, by default this checkout's."""
    env = dict(os.environ)
    first = [] if operator is None else [str(operator)]
    paths = [*first, *PATHS, env.get("PYTHONPATH", "")]
    env["PYTHONPATH"] = os.pathsep.join(paths).rstrip(os.pathsep)
    target = f"{function.__module__}:{function.__qualname__}"
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.harness", target, str(answer), json.dumps(arguments)],
        env=env,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def await_child(process: subprocess.Popen[bytes], answer: Path, timeout: float) -> Any:
    """Its result. Raises ChildFailed with the end of its output."""
    try:
        _, output = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired as error:
        process.kill()
        _, output = process.communicate()
        raise ChildFailed(f"took longer than {timeout:.0f} s: {_tail(output)}") from error
    finally:
        # After any interrupt, no child continues in the background.
        if process.poll() is None:
            process.kill()
    if process.returncode or not answer.is_file():
        raise ChildFailed(f"exit code {process.returncode}: {_tail(output)}")
    return json.loads(answer.read_text())


def in_child(
    function: Callable[..., Any],
    *,
    timeout: float = 900,
    operator: Path | None = None,
    **arguments: Any,
) -> Any:
    """Call `function` in a separate process, as `start_child` does. Raises ChildFailed."""
    with tempfile.TemporaryDirectory(prefix="tandem-bench-") as folder:
        answer = Path(folder) / "answer.json"
        process = start_child(function, answer, operator, **arguments)
        return await_child(process, answer, timeout)


def _tail(output: bytes) -> str:
    return output.decode(errors="replace")[-3000:]


def _child(target: str, answer: str, arguments: str) -> None:
    module, name = target.split(":")
    function = getattr(importlib.import_module(module), name)
    result = function(**json.loads(arguments))
    part = Path(f"{answer}.part")
    part.write_text(json.dumps(result))
    part.replace(answer)


if __name__ == "__main__":
    _child(*sys.argv[1:])
