"""Whether statements see all rows of a table: those of a log count once they are merged."""

from __future__ import annotations

from tandem.errors import UnmergedRecords
from tandem.mergelog.state.base_history import BaseHistory
from tandem.mergelog.state.log_table import MergeLog
from tandem.operations.model import Table


def require_merged(table: Table) -> None:
    """Check that a merge-on-read table has no unmerged records: a statement reads the base table,
    and would miss what was acknowledged before it began.

    Raises: UnmergedRecords, BaseReplaced, BaseHistoryGap.
    """
    log = MergeLog(table.log)
    if not log.exists():
        return
    snapshot = log.snapshot()
    blocks = BaseHistory(log, snapshot).at(table.log.latest_version()).unmerged
    if blocks:
        raise UnmergedRecords(
            "the statement would not see the records of the log",
            resource=table.display,
            field="spec.mergeOnRead",
            found=f"{len(blocks)} blocks that are not merged",
            expected="none",
            remedy="Run a TableCompaction of type LogMerge first",
        )
