"""What happens to an operation when the table's metadata or protocol changes (design, "Table
changes").

The rules are a table in `tandem.reconcile.rules`; this module turns them into decisions.
"""

from __future__ import annotations

from tandem.delta.actions import Metadata, Protocol
from tandem.delta.protocol import OperationKind
from tandem.operations.machine.events import Verdict
from tandem.operations.model import Decision, Work
from tandem.reconcile.rules import Response
from tandem.reconcile.table_changes import TableState, check_table


def verdict_of_table(work: Work, kind: OperationKind, *, needs_vectors: bool) -> Decision | None:
    """The verdict if the table changed since the plan in a way that matters; None to continue.

    `needs_vectors`: the commit always adds deletion vectors to files.
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
    return None
