"""The files of a job: makes its inputs from live files, `add` actions from its outputs, and reads
the rows that it matched."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyroaring import BitMap64

from tandem.delta import dv
from tandem.delta.actions import AddFile
from tandem.errors import ManifestInvalid
from tandem.jobs.formats import InputFile
from tandem.jobs.results import JobResult, OutputFile
from tandem.operations.attempt import paths as files
from tandem.operations.attempt.sidecars import read_sidecar
from tandem.operations.kinds.table.snapshot_view import SnapshotView
from tandem.operations.model import OutputFileChange, Table
from tandem.reconcile.outcomes import FileDeletes
from tandem.rowmap.positions import span
from tandem.storage import paths


def require_inside(table: Table, adds: Iterable[AddFile]) -> None:
    """Check that the logged paths of these files lie in the table or below an allowed prefix, so
    that no job is started that could not read them.

    Raises: LocationNotAllowed.
    """
    allowed = tuple(
        paths.canonical_prefix(prefix, field="allowedPrefixes")
        for prefix in table.readable_prefixes
    )
    for add in adds:
        paths.resolve(add.path, table.location, allowed)


def input_file(view: SnapshotView, path: str, wanted: BitMap64 | None) -> InputFile:
    """An input of which only the rows `wanted` are evaluated; None: all live rows."""
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


def matches_of(table: Table, result: JobResult) -> pa.Table:
    """The matches of a round, as `JobResult` describes them. Raises: ManifestInvalid."""
    if result.matches is None:
        raise ManifestInvalid(
            "the result of a round has no matches",
            resource=files.rounds(result.operation_id, result.attempt),
            field="matches",
        )
    data = read_sidecar(table.store, result.matches)
    with pa.ipc.open_file(pa.BufferReader(data)) as reader:
        return reader.read_all()


@dataclass(frozen=True, slots=True)
class FileChanges:
    """Files that a commit removes, and those that it gives another deletion vector."""

    removes: tuple[AddFile, ...]
    marked: tuple[OutputFileChange, ...]


def changes_of(view: SnapshotView, deletes: Mapping[str, FileDeletes]) -> FileChanges:
    """The changes that deletes make to live files: one without a live row is removed (Z11)."""
    view.prefetch(deletes)
    removes, marked = [], []
    for path, found in deletes.items():
        add = view.add(path)
        assert add is not None
        if found.is_whole:
            removes.append(add)
        else:
            marked.append(OutputFileChange(add, found.rows, found.dead))
    return FileChanges(tuple(removes), tuple(marked))


def output_add(output: OutputFile, tags: Mapping[str, str], *, data_change: bool) -> AddFile:
    """The `add` of an output, whose path is as it is logged."""
    return AddFile(
        logged_path=output.path,
        partition_values=dict(output.partition_values),
        size=output.size,
        modified_ms=output.modified_ms,
        data_change=data_change,
        stats=output.stats,
        tags=dict(tags),
    )
