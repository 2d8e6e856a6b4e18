"""The machine of a measurement: facts that explain the figures, without names or paths."""

from __future__ import annotations

import os
import platform
import time
from importlib.metadata import version
from pathlib import Path

PACKAGES = ("pyspark", "delta-spark", "deltalake", "duckdb", "polars", "pyarrow", "pyroaring")


def describe() -> dict[str, str]:
    """Cores, memory, and versions of all measured software."""
    from tandem import __version__
    from tandem.spark.runtime.session import find_java, java_version

    found = {
        "cores": str(os.cpu_count()),
        "processor": _processor(),
        "memory": f"{_memory_bytes() / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "java": java_version(find_java()),
        "tandem": __version__,
    }
    return found | {package: _version(package) for package in PACKAGES}


def others(seconds: float = 3.0) -> float:
    """Other runnable processes, averaged over the next seconds, as a measure of other load. The
    kernel's own average of a minute would count the benchmark before this one."""
    file = Path("/proc/loadavg")
    if not file.is_file():
        return os.getloadavg()[0]
    found = []
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        found.append(int(file.read_text().split()[3].split("/")[0]) - 1)
        time.sleep(0.05)
    return sum(found) / len(found)


def _version(package: str) -> str:
    if package == "delta-spark":
        # Only its jar is used; its version is part of the coordinate.
        from delta_session import DELTA_PACKAGE

        return DELTA_PACKAGE.rsplit(":", 1)[1]
    return version(package)


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
