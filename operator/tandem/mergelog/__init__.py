"""Merge-on-read: a log of blocks beside a base table, and the merged view of both.

The log is a Delta table of its own, in `_tandem/log` of the base table. A block is a file of it,
an instant one of its versions. The view is a pure function of both logs; stitching blocks and
merging them into the base table change no view. Does not run operations.

    state    package: what the log says
    rows     package: the records
    runs     which blocks a log compaction stitches
    create   makes the log of a base table
    usage    what a log holds, and for how long
    writer   `LogWriter`
    upkeep   commits that add no records
    view     the merged view
"""

from typing import TYPE_CHECKING

from tandem.exports import exports

if TYPE_CHECKING:
    from tandem.mergelog.create import ensure_log
    from tandem.mergelog.state.log_table import LogSettings, MergeLog
    from tandem.mergelog.view import MergedView, open_log, open_view, scan
    from tandem.mergelog.writer import Appended, LogWriter

__all__ = [
    "Appended",
    "LogSettings",
    "LogWriter",
    "MergeLog",
    "MergedView",
    "ensure_log",
    "open_log",
    "open_view",
    "scan",
]

__getattr__ = exports(
    __name__,
    {
        "open_log": "view",
        "open_view": "view",
        "scan": "view",
        "ensure_log": "create",
        "LogSettings": "state.log_table",
        "MergeLog": "state.log_table",
        "MergedView": "view",
        "Appended": "writer",
        "LogWriter": "writer",
    },
)
