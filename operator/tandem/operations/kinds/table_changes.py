"""What a table allows an operation to do, and what happens to it when the table's metadata or
protocol changes.

The rules are a table in `tandem.reconcile.rules`; this module turns them into decisions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from tandem.delta.actions import AddFile, Metadata, Protocol
from tandem.delta.log.snapshot import Snapshot
from tandem.delta.protocol import OperationKind
from tandem.errors import DeletionVectorsDisabled, Reason
from tandem.jobs.formats import InputFile
from tandem.operations.machine.events import Verdict
from tandem.operations.model import Decision, Table, Work
from tandem.operations.report.explain import of_row_edits
from tandem.reconcile.rules import Response
from tandem.reconcile.table_changes import TableState, check_table
from tandem.remedies import ENABLE_VECTORS

MOST_LOST_EDITS: Final = 5
"""Rounds of edits without progress that end an operation which has no `conflict.maxAttempts`."""


def planned_edits(
    work: Work,
    files: Sequence[AddFile] | Sequence[InputFile],
    columns: Sequence[str] | None = None,
    share: float | None = None,
    *,
    of: str = "a match",
) -> str | None:
    """What a plan says of files that have to be made again; None where deletion vectors hide rows,
    and where edits are not allowed. Args: as `of_row_edits`."""
    table = work.table
    if not files or table.vectors_only or table.will_write_vectors(work.snapshot):
        return None
    return of_row_edits(len(files), sum(file.size for file in files), columns, share, of=of)


def verdict_of_table(work: Work, kind: OperationKind, *, needs_vectors: bool) -> Decision | None:
    """The verdict if the table changed since the plan in a way that matters; None to continue.

    `needs_vectors`: the commit deletes rows of live files, and may do so by deletion vectors alone.
    """
    plan, job = work.frozen
    table, features = job.table, plan.protocol
    read = TableState(
        version=plan.read_version,
        metadata=Metadata(
            id=table.table_id,
            schema_string=table.schema_string,
            partition_columns=table.partition_columns,
            configuration=table.configuration,
        ),
        protocol=Protocol(
            features.min_reader,
            features.min_writer,
            frozenset(features.reader_features),
            frozenset(features.writer_features),
        ),
    )
    latest = TableState(work.snapshot.version, work.snapshot.metadata, work.snapshot.protocol)
    verdict = check_table(read, latest, kind, needs_vectors=needs_vectors)
    if verdict.response is Response.CONFLICT:
        return Decision(Verdict.CONFLICT, verdict.why, verdict.reason)
    if verdict.response is Response.VALIDATE:
        # A new attempt plans, and with it validates, on the table as it is now.
        return Decision(Verdict.REPLAN, verdict.why)
    if needs_vectors and not work.writes_vectors:
        # A plan may precede the commit that enables them.
        return Decision(Verdict.CONFLICT, _OFF, Reason.DELETION_VECTORS_DISABLED)
    return None


def require_vectors_or_edits(
    table: Table, snapshot: Snapshot, resource: str, field: str = "spec.tableRef"
) -> None:
    """Check that rows of live files may be deleted: by deletion vectors, or, unless the LakeTable
    forbids them, by edits.

    Raises: DeletionVectorsDisabled.
    """
    if not table.vectors_only or table.will_write_vectors(snapshot):
        return
    raise DeletionVectorsDisabled(
        _OFF,
        resource=resource,
        field=field,
        found="delta.enableDeletionVectors is not true, and vectors: Only",
        expected="a table with deletion vectors, or vectors: Auto",
        remedy=f"{ENABLE_VECTORS.in_resource} (old readers may then refuse the table), or "
        "vectors: Auto there, which rewrites files instead",
    )


_OFF = "deletion vectors are off on this table, and its LakeTable allows nothing else"
