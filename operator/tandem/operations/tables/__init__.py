"""A table itself, rather than an operation on it.

Never runs an operation; only `adopt` writes to the table.

    adopt            adopt a table, or create it
    auto_compaction  a table's facts for automatic compaction
    log_status       the log of a merge-on-read table, as fields of the status
"""
