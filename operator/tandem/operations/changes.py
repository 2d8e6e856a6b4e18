"""What happens to an operation when the table itself changes (design, "Table changes")."""

from __future__ import annotations

from collections.abc import Mapping

from tandem.errors import Reason
from tandem.operations.events import Verdict
from tandem.operations.work import Decision, Work


def table_changed(work: Work, *, schema_matters: bool = False) -> Decision | None:
    """What to do if the table is not the one that was planned on; None if it is.

    `schema_matters`: the operation wrote new values, so they must be written again for
    another schema or other constraints. A rewrite of the same rows need not care: a column
    that was added is null in old files, ours are among them.
    """
    plan, job = work.frozen
    snapshot = work.snapshot
    if snapshot.metadata.id != plan.table_id or snapshot.version < plan.read_version:
        return Decision(
            Verdict.CONFLICT,
            "the table was replaced by another one meanwhile",
            Reason.TABLE_REPLACED,
        )
    if snapshot.partition_columns != job.table.partition_columns:
        return Decision(Verdict.CONFLICT, "the table is partitioned by other columns now")
    if not schema_matters:
        return None
    if snapshot.metadata.schema_string != job.table.schema_string:
        return Decision(Verdict.REPLAN, "the schema of the table changed meanwhile")
    if _constraints(snapshot.configuration) != _constraints(job.table.configuration):
        return Decision(Verdict.REPLAN, "the constraints of the table changed meanwhile")
    return None


def _constraints(configuration: Mapping[str, str]) -> dict[str, str]:
    return {
        key: value
        for key, value in configuration.items()
        if key.startswith("delta.constraints.") or key == "delta.appendOnly"
    }
