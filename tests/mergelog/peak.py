"""The peak memory of a service of a log, measured in a process of its own, where limits are small:

python -m mergelog.peak SERVICE FOLDER
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from mergelog.orders import MERGE, STITCH, Orders
from tandem import mergelog
from tandem.delta.datafiles import writer
from tandem.mergelog import blocks, stitch
from tandem.spark.jobs import log_merge
from tandem.spec.status import Phase

MIB = 1 << 20


def of(service: str, folder: Path) -> int:
    """Bytes that Arrow had allocated at most, in a process that does nothing else."""
    paths = [path for path in sys.path if path]
    done = subprocess.run(
        [sys.executable, "-m", "mergelog.peak", service, str(folder)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        check=True,
        capture_output=True,
        text=True,
    )
    return int(done.stdout)


def _run(spec: dict[str, str]) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        assert Orders(folder).run(spec).phase is Phase.SUCCEEDED

    return run


def _read(folder: Path) -> None:
    rows = sum(batch.num_rows for batch in mergelog.scan(str(folder)))
    assert rows


_SERVICES = {"stitch": _run(STITCH), "merge": _run(MERGE), "read": _read}

if __name__ == "__main__":
    pa.set_cpu_count(1)
    writer.GROUP_BYTES = 2 * MIB
    blocks.MEMORY = stitch.MEMORY = log_merge.HELD = 4 * MIB  # type: ignore[misc]
    _SERVICES[sys.argv[1]](Path(sys.argv[2]))
    sys.stdout.write(str(pa.default_memory_pool().max_memory()))
