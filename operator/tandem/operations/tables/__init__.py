"""A table itself, rather than an operation on it.

Modules:

    adopt            adopt a table, or create it
    auto_compaction  a table's facts for automatic compaction
"""
