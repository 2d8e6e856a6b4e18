"""Merge-on-read: a log of blocks beside a base table, and the merged view of both.

The log is a Delta table of its own, in `_tandem/log` of the base table. A block is a file of it,
an instant one of its versions. The view is a pure function of both logs; stitching blocks and
merging them into the base table change no view. Does not run operations.

What the log says, from transaction logs alone:

    versions      blocks, what a version of the log says, and which blocks a log compaction stitches
    boundaries    what a commit of the base table means for the log, the fold over commits, and
                  from one state of the log to the actions that record the next
    log_table     the log as a Delta table: settings, schema, states; made once, and committed to
    base_history  brings the log up to a version of its base table

Its records; which blocks there are is an argument, and nothing here commits:

    blocks        the rows of blocks
    winners       the winners of blocks, and the rows of a file that they match
    by_key        which record of a key wins, and which stay; the rows of blocks by key, as streams
    stitch        makes one block of a run

The log as a whole:

    writer        `LogWriter`
    upkeep        commits that add no records
    usage         what a log holds, and for how long
    view          the merged view
"""

from typing import TYPE_CHECKING

from tandem.exports import exports

if TYPE_CHECKING:
    from tandem.mergelog.log_table import LogSettings, MergeLog, ensure_log
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
        "ensure_log": "log_table",
        "LogSettings": "log_table",
        "MergeLog": "log_table",
        "MergedView": "view",
        "Appended": "writer",
        "LogWriter": "writer",
    },
)
