"""What all children have imported before they are forked. The template begins no thread and opens
no connection: neither survives a fork."""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module

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
    "tandem.spark.jobs.rewrite",
    "tandem.spark.jobs.statement",
    "tandem.spark.jobs.stitch",
    "tandem.spark.jobs.upsert",
    "tandem.storage.remote",
):
    import_module(_name)

# What is here never becomes garbage, and its pages stay shared.
gc.collect()
gc.freeze()
