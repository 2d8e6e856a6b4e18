"""From a file that a job wrote to the `add` that makes it visible."""

from __future__ import annotations

from collections.abc import Mapping

from tandem.delta.actions import AddFile
from tandem.spark.job import OutputFile


def output_add(output: OutputFile, tags: Mapping[str, str], *, data_change: bool) -> AddFile:
    """Our paths need no percent-encoding: the logged path is the path."""
    return AddFile(
        logged_path=output.path,
        partition_values=dict(output.partition_values),
        size=output.size,
        modified_ms=output.modified_ms,
        data_change=data_change,
        stats=output.stats,
        tags=dict(tags),
    )
