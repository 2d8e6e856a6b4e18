"""`make mutants`: plant each bug in a copy of the tree, and see which check notices.

    python -m mutants.run [NAME…] [--jobs N]

A run begins with what caught the bug the last time; if that is content now, with all checks in
their order. Writes the table in tests/mutants/mutants.md. Exit code 1 if a mutant survives: then a
check is missing, or the code that it broke is not needed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from queue import Queue

from mutants.catalogue import MUTANTS
from mutants.model import Check, Mutant
from mutants.page import PAGE, Caught, read, write
from support.some import EVERY_CASE

ROOT = Path(__file__).resolve().parents[2]
_COPIED = (
    *("operator", "tests", "tools", "examples", "crds", "charts", "docs", "requirements"),
    "pyproject.toml",
)
_LONGEST_S = 3600.0
"""How long a check may take without any bug."""
_TIMES_AS_LONG = 4
_LEAST_LIMIT_S = 120.0
_TITLE = attrgetter("title")


@dataclass(frozen=True)
class Verdict:
    """`caught` is None where a mutant survived."""

    mutant: Mutant
    caught: Caught | None
    seconds: float


def copy_tree(into: Path) -> Path:
    """A copy of what the checks need."""
    for name in _COPIED:
        source = ROOT / name
        if source.is_dir():
            skipped = shutil.ignore_patterns("__pycache__", ".hypothesis")
            shutil.copytree(source, into / name, ignore=skipped)
        else:
            shutil.copy2(source, into / name)
    return into


@dataclass(frozen=True)
class Run:
    """The exit code of a check (1 where it did not end in time), what it printed, and its time."""

    code: int
    text: str
    seconds: float


def run(
    check: Check, tree: Path, limit_s: float, test: str = "", *, every_case: bool = False
) -> Run:
    """A check of the tree, or one of its tests, ended after `limit_s` seconds. `every_case`: with
    the cases and examples that `make test` leaves to `make matrix`."""
    paths = [str(tree / name) for name in ("operator", "tests", "tools", "examples/flights")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    if every_case or check.every_case:
        environment[EVERY_CASE] = "1"
    began = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, *(check.only(test) if test else check.arguments)],
            cwd=tree,
            env=environment,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Run(1, f"not ended after {limit_s:.0f} s", limit_s)
    return Run(done.returncode, done.stdout + done.stderr, time.monotonic() - began)


def first_failed(text: str) -> str:
    """The first test that pytest names as failed; "" where it was no test."""
    for line in text.splitlines():
        if line.startswith(("FAILED ", "ERROR ")):
            return line.split(" ", 1)[1].split(" - ")[0].split("[")[0]
    return ""


def judge(
    mutant: Mutant, tree: Path, known: Caught | None, limits: Mapping[Check, float]
) -> Verdict:
    """Plant the bug, run the checks in turn until one fails, take it out again.

    Checks run with every case only where they notice nothing without.
    A check that a bug makes `_TIMES_AS_LONG` times as long has failed: some bugs are endless loops.
    """
    began = time.monotonic()
    path = tree / mutant.path
    original = path.read_text()
    path.write_text(mutant.applied(original))
    try:
        if known is not None and _fails_again(mutant, tree, known, limits):
            return Verdict(mutant, known, time.monotonic() - began)
        for check in mutant.checks:
            found = run(check, tree, limits[check])
            if found.code:
                caught = Caught(check.title, first_failed(found.text))
                return Verdict(mutant, caught, time.monotonic() - began)
        for check in mutant.checks:
            found = run(check, tree, _LONGEST_S, every_case=True)
            if found.code:
                caught = Caught(f"{check.title}, every case", first_failed(found.text))
                return Verdict(mutant, caught, time.monotonic() - began)
    finally:
        path.write_text(original)
    return Verdict(mutant, None, time.monotonic() - began)


def _fails_again(mutant: Mutant, tree: Path, known: Caught, limits: Mapping[Check, float]) -> bool:
    """Whether the check fails that did the last time. A test that is no more there (exit code 4)
    has not failed."""
    checks = [check for check in mutant.checks if check.title == known.check]
    return any(run(check, tree, limits[check], known.test).code == 1 for check in checks)


def main() -> int:
    parser = argparse.ArgumentParser(prog="mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="only these mutants")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    found = parser.parse_args()
    chosen = [m for m in MUTANTS if not found.names or m.name in found.names]
    output_lock = threading.Lock()
    done: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="tandem-mutants-") as folder:
        trees: Queue[Path] = Queue()
        for number in range(found.jobs):
            trees.put(copy_tree(Path(folder) / str(number)))
        known = read(ROOT / PAGE)
        # A check that fails by itself would catch everything. One tree serves all: none writes.
        checks = sorted({check for mutant in chosen for check in mutant.checks}, key=_TITLE)
        with ThreadPoolExecutor(found.jobs) as pool:
            runs = list(pool.map(lambda check: run(check, Path(folder) / "0", _LONGEST_S), checks))
        for check, clean in zip(checks, runs, strict=True):
            if clean.code:
                sys.stdout.write(f"without any bug, {check.title} fails:\n{clean.text[-3000:]}\n")
                return 2
            sys.stdout.write(f"without any bug, {check.title}: {clean.seconds:.0f} s\n")
        sys.stdout.flush()
        limits = {
            check: max(_LEAST_LIMIT_S, _TIMES_AS_LONG * clean.seconds)
            for check, clean in zip(checks, runs, strict=True)
        }

        def one(mutant: Mutant) -> None:
            tree = trees.get()
            try:
                verdict = judge(mutant, tree, known.get(mutant.name), limits)
            finally:
                trees.put(tree)
            with output_lock:
                done.append(verdict)
                by = verdict.caught or "SURVIVED"
                sys.stdout.write(
                    f"{len(done):>3}/{len(chosen)} {mutant.name}: {by} ({verdict.seconds:.0f} s)\n"
                )
                sys.stdout.flush()

        with ThreadPoolExecutor(found.jobs) as pool:
            list(pool.map(one, chosen))
    known.update({v.mutant.name: v.caught for v in done if v.caught is not None})
    write(ROOT / PAGE, known)
    survivors = [v.mutant.name for v in done if v.caught is None]
    sys.stdout.write(f"{len(done) - len(survivors)} of {len(done)} caught\n")
    for name in survivors:
        sys.stdout.write(f"survived: {name}\n")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
