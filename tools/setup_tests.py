"""Set up the programs, jars and archives that `make test` needs, in parallel.

Idempotent; prints nothing once all parts exist. Each part is a separate script that prints what it
starts; this module starts and counts them. Go builds one program at a time, on all cores.
"""

from __future__ import annotations

import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

TOOLS = Path(__file__).resolve().parent
PART = dict[str, list[str | Path]]
LANES: tuple[PART, ...] = (
    {"Spark's archives and Delta's jars": [sys.executable, TOOLS / "spark_setup.py", "--tests"]},
    {
        "etcd and the Kubernetes API server": [TOOLS / "build-kubernetes.sh"],
        "parquet-go and Arrow Go": [TOOLS / "build-go-parquet.sh"],
        "versitygw": [TOOLS / "build-versitygw.sh"],
        "Helm": [TOOLS / "build-helm.sh"],
        "the judges of Argo CD and Flux": [TOOLS / "build-gitops.sh"],
        "promtool": [TOOLS / "build-promtool.sh"],
        "the CRDs of Prometheus": [TOOLS / "build-prometheus-crds.sh"],
        "the Spark operator's arguments": [TOOLS / "build-spark-arguments.sh"],
        "moto, for AWS Glue": [TOOLS / "setup-moto.sh"],
        "Unity Catalog's server, and DuckDB's client": [TOOLS / "build-unity.sh"],
    },
)
QUICK_S = 2.0
"""Seconds; a faster part existed before."""


class Count:
    """Number of finished parts, of all."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._ready = 0

    def ready(self, name: str, seconds: float) -> None:
        with self._lock:
            self._ready += 1
            if seconds >= QUICK_S:
                total = sum(map(len, LANES))
                sys.stderr.write(f"[{self._ready}/{total}] {name}: ready after {seconds:.0f} s\n")


def run(lane: PART, count: Count) -> list[str]:
    """The failed parts of the lane; each has printed its error."""
    failed = []
    for name, command in lane.items():
        begun = time.monotonic()
        if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode:
            failed.append(name)
        else:
            count.ready(name, time.monotonic() - begun)
    return failed


def main() -> int:
    count = Count()
    with ThreadPoolExecutor(len(LANES)) as pool:
        failed = [name for lane in pool.map(lambda lane: run(lane, count), LANES) for name in lane]
    if failed:
        sys.stderr.write(f"Set-up failed: {', '.join(failed)} (see above). Run it again.\n")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
