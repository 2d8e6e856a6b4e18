"""Run benchmarks: `python benchmarks/run.py [NAME ...] [--size small|full]`.

`full` (the default) stores the results and writes both pages (`report`); `small` only prints, to
check that a benchmark works. After a failed benchmark, the next one runs.
"""

from __future__ import annotations

import argparse
import datetime
import importlib
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":
    # For a script, Python puts this folder first, where our modules would hide others'.
    TREE = Path(__file__).resolve().parent.parent
    sys.path[:1] = [
        str(TREE),
        str(TREE / "operator"),
        str(TREE / "examples"),
        str(TREE / "tests"),
        str(TREE / "tools"),
    ]

from benchmarks import machine, report
from benchmarks.harness import ROOT, ChildFailed, Report, WrongResult

NAMES = (
    "snapshot",
    "planning",
    "timeline",
    "index",
    "index_lookups",
    "replace",
    "replay",
    "mergelog",
    "hudi",
    "critical",
    "compaction",
    "small_files",
    "rewrites",
    "goodput",
    "crowd",
    "busy",
    "converge",
    "longevity",
    "locks",
    "exclusive",
    "resources",
    "hanging",
    "crowded",
    "distance",
    "partcopy",
    "row_tracking",
    "tracked_changes",
    "catalog_commit",
    "bigsort",
)


def run_one(name: str, size: str, work: Path) -> Report:
    """One benchmark in a separate folder, which is removed afterwards.

    Raises: WrongResult, ChildFailed.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=work))
    try:
        found: Report = importlib.import_module(f"benchmarks.{name}").run(size, folder)
        return found
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure against other engines, side by side.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(NAMES)}")
    parser.add_argument("--size", choices=("small", "full"), default="full")
    parser.add_argument("--work", type=Path, help="where tables are put for the time (3 GB; 12)")
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in NAMES:
            parser.error(f"no benchmark {name}: there are {', '.join(NAMES)}")
    from tandem.spark.runtime.session import cache_dir

    work = arguments.work or cache_dir() / "bench"
    work.mkdir(parents=True, exist_ok=True)
    # So that children are ended and tables removed, as after an interrupt.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # Jobs of ours log there, too.
    os.environ.setdefault("TANDEM_CACHE", str(cache_dir()))
    failed: list[str] = []
    for name in arguments.names or NAMES:
        sys.stderr.write(f"{name} ({arguments.size}) …\n")
        others = machine.others()
        try:
            found = run_one(name, arguments.size, work)
        except (WrongResult, ChildFailed) as error:
            # It has no figures; the others still run.
            failed.append(name)
            sys.stderr.write(f"{name} failed: {type(error).__name__}: {error}\n")
            continue
        print(report.tables_text(found), end="\n\n", flush=True)
        if arguments.size == "full":
            today = datetime.datetime.now(datetime.UTC).date().isoformat()
            about = {"versions": machine.describe(), "day": today, "others_before": others}
            report.save(found, about)
            report.write_page()
            sys.stderr.write(f"Kept; {report.PAGE.relative_to(ROOT)} is written.\n")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
