"""What all children have imported before they are forked. The template begins no thread and opens
no connection: neither survives a fork."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from importlib import import_module
from pathlib import Path

# Arrow's own allocator reserves a gigabyte, which would count against a child's bound, as would the
# stacks and buffers of threads of linear algebra.
os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"
os.environ["OPENBLAS_NUM_THREADS"] = "1"


class _WithoutPandas:
    """Arrow imports it, if it is there, to recognise its values: half of a template's memory."""

    @staticmethod
    def find_spec(name: str, _path: object, _target: object = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError(name, name=name)


sys.meta_path.insert(0, _WithoutPandas)
for _name in (
    "tandem.kube.children.child",
    "tandem.spark.jobs.ingest",
    "tandem.spark.jobs.log_merge",
    "tandem.spark.jobs.merge",
    "tandem.spark.jobs.rewrite.job",
    "tandem.spark.jobs.statement",
    "tandem.spark.jobs.stitch",
    "tandem.spark.jobs.upsert",
    "tandem.storage.remote",
):
    import_module(_name)


def _overwrite_environment() -> None:
    """What a process is begun with stays readable in /proc, in all that are forked from it, too:
    the operator's credentials, whatever the environment of a child says."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:  # another system
        return
    begin, end = int(fields[47]), int(fields[48])  # env_start, env_end
    if not 0 < begin < end:
        return
    kept = dict(os.environ)
    ctypes.CDLL(None).clearenv()  # its variables are there
    ctypes.memset(begin, 0, end - begin)
    os.environ.update(kept)


_overwrite_environment()
# What is here never becomes garbage, and its pages stay shared.
gc.collect()
gc.freeze()
