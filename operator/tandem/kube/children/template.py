"""What all children have imported before they are forked. The template begins no thread and opens
no connection: neither survives a fork."""

from __future__ import annotations

import gc
import os

# Arrow's own allocator reserves a gigabyte, which would count against a child's bound.
os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"
os.environ["MALLOC_ARENA_MAX"] = "2"

from tandem.kube.children import child as child
from tandem.spark.jobs import ingest, log_merge, merge, statement, stitch, upsert
from tandem.spark.jobs.rewrite import job
from tandem.storage import remote

__all__ = [
    "child",
    "ingest",
    "job",
    "log_merge",
    "merge",
    "remote",
    "statement",
    "stitch",
    "upsert",
]

# What is here never becomes garbage, and its pages stay shared.
gc.collect()
gc.freeze()
