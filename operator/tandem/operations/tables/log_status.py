"""The log of a merge-on-read table, as fields of the status.

What reads a log and plans its upkeep is imported once there is one: most tables have none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem.errors import AccessDenied, ObjectNotFound, StorageError, TandemError
from tandem.mergelog.state.log_table import MergeLog
from tandem.operations.model import Table
from tandem.spec.log_compaction import DEFAULT_MAX_BLOCK_BYTES, MergeOnRead
from tandem.spec.status import LogStatus, NextLogAction, TableStatus, rfc3339
from tandem.spec.table import LakeTable

if TYPE_CHECKING:
    from tandem.mergelog.state.versions import LogFacts
    from tandem.planning.auto.facts import AutoCompactionDecision


def log_status(log: LogFacts, policy: MergeOnRead | None, table: TableStatus) -> LogStatus:
    """The facts of a log as its table's status shows them. Pure.

    Args:
        table: has the rows of the base table.
    """
    limit = DEFAULT_MAX_BLOCK_BYTES
    if policy is not None and policy.log_compaction is not None:
        limit = policy.log_compaction.max_block_bytes
    blocks = log.state.live.values()
    return LogStatus(
        newest_instant=log.newest,
        merged_instant=log.state.mark if log.state.mark >= 0 else None,
        blocks=len(blocks),
        unmerged_blocks=len(log.state.unmerged),
        small_blocks=sum(block.size < limit for block in blocks),
        bytes=log.state.size,
        oldest_unmerged=rfc3339(log.oldest_ms) if log.oldest_ms is not None else None,
        dead_percent=_dead_percent(table),
        problem=log.unmergeable or None,
    )


def _dead_percent(table: TableStatus) -> int | None:
    if table.rows is None or table.deleted_rows is None:
        return None
    rows = table.rows + table.deleted_rows
    return 100 * table.deleted_rows // rows if rows else 0


def is_automatic(policy: MergeOnRead | None) -> bool:
    """Whether log compactions or merges start by themselves."""
    return policy is not None and (policy.log_compaction or policy.merge) is not None


def next_log_action(decision: AutoCompactionDecision, why: str) -> NextLogAction:
    """The decision as a field of a LakeTable's status. Pure."""
    from tandem.planning.auto.schedule_times import kubernetes_time

    return NextLogAction(
        what=decision.next_what,
        next_time=kubernetes_time(decision.next_ms) if decision.next_ms is not None else None,
        why=why,
    )


def read_log_status(
    table: Table, resource: LakeTable | None, status: TableStatus, now_ms: int | None = None
) -> LogStatus | None:
    """The log of a table as it is now, None if it has none; why it cannot be read, if so.

    Args:
        now_ms: for what an operator would do next that sees the table for the first time; without
            it that is left out.
    Raises: StorageError.
    """
    policy = resource.spec.merge_on_read if resource is not None else None
    log = MergeLog(table.log)
    try:
        if policy is None and not log.exists():
            return None
        from tandem.mergelog.usage import LogReader

        reader = LogReader(log)
        if not reader.update():
            return None
        facts = reader.facts(table.log.snapshot())
    except (AccessDenied, ObjectNotFound) as error:
        return LogStatus(problem=str(error))
    except StorageError:
        raise
    except TandemError as error:
        return LogStatus(problem=str(error))
    found = log_status(facts, policy, status)
    if now_ms is None or policy is None or resource is None or not is_automatic(policy):
        return found
    from tandem.planning.auto.child_compactions import TableId
    from tandem.planning.auto.log import decide_log

    decision = decide_log(policy, TableId(resource.name, ""), facts, (), (), now_ms)
    return found.model_copy(update={"next": next_log_action(decision, decision.why)})
