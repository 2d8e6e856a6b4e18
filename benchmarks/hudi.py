"""What Apache Hudi writes for each byte ingested, with full compactions: the peer of the first
table of `mergelog`. The first run downloads 1 GB (`tools/setup-hudi.sh`)."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Final

from benchmarks.harness import ROOT, ChildFailed, Report, Table, progress
from benchmarks.mergelog import COMMITS, KEYS

EVERY: Final = (5, 10, 50)


def run(size: str, work: Path) -> Report:
    """Raises: ChildFailed."""
    keys, commits = KEYS[size], COMMITS[size]
    progress("set Hudi up")
    setup = subprocess.run(
        [ROOT / "tools" / "setup-hudi.sh"], stdout=subprocess.PIPE, text=True, check=True
    )
    answer = work / "answer.json"
    work.mkdir(parents=True, exist_ok=True)
    arguments = {"keys": keys, "commits": commits, "every": EVERY}
    progress(f"{commits} commits of 1 % of {keys:,} keys, compactions every {EVERY} commits")
    script = ROOT / "benchmarks" / "hudi_session.py"
    command = [setup.stdout.strip(), str(script), json.dumps(arguments), str(answer)]
    with open(os.devnull) as nothing:
        child = subprocess.run(command, cwd=work, stdin=nothing, check=False)
    if child.returncode:
        raise ChildFailed(f"Hudi ended with {child.returncode}")
    raw: dict[str, dict[str, int]] = json.loads(answer.read_text())
    share = {
        every: (found["ingested"] + found["compacted"]) / found["ingested"]
        for every, found in raw.items()
    }
    return Report(
        name="hudi",
        title="Apache Hudi: bytes written for each byte ingested",
        setting=(
            f"Hudi 1.2 on Spark 3.5, merge-on-read, {keys:,} rows of 10 columns in one file group, "
            f"{commits} commits of 1 % of the keys, a full compaction after every 5, 10 or 50; "
            "without its timeline. The peer of the first table of *A log of blocks beside a "
            "table*. A full compaction of Hudi rewrites each base file that has a log; a LogMerge "
            "of Tandem writes new rows and deletion vectors."
        ),
        tables=(
            Table(
                "",
                ("full compaction", "written ÷ ingested", "bytes ingested"),
                tuple(
                    (f"every {every} commits", f"{share[every]:.1f}", f"{found['ingested']:,}")
                    for every, found in raw.items()
                ),
            ),
        ),
        checks=("The table has all keys at the end.",),
        raw=raw,
    )
