"""From a live file to what a job is told to read of it."""

from __future__ import annotations

from pyroaring import BitMap64

from tandem.delta import dv
from tandem.operations.views import SnapshotView
from tandem.reconcile.positions import span
from tandem.spark.job import InputFile


def input_file(view: SnapshotView, path: str, wanted: BitMap64 | None) -> InputFile:
    """A file of which only `wanted` rows are evaluated; None: all that are live."""
    add, state = view.add(path), view.get(path)
    assert add is not None
    assert state is not None
    skipped = state.dead if wanted is None else span(0, state.rows) - wanted
    return InputFile(
        logged_path=path,
        size=add.size,
        rows=state.rows,
        dv=dv.to_base64(skipped) if skipped else "",
        partition_values=dict(add.partition_values),
    )
