"""A table itself, rather than an operation on it.

Modules:

    adopt            adopt a table, or create it
    auto_compaction  a table's facts for automatic compaction
    log_status       the log of a merge-on-read table, as fields of the status
"""
