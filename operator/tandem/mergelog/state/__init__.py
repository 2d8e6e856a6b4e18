"""What a log says: its blocks, its mark, and up to which version it has processed its base table.

Reads transaction logs only: never opens a block or a data file, and never commits.

    versions      blocks, and what a version of the log says
    boundaries    what a commit of the base table means for the log, and the fold over commits
    log_table     the log as a Delta table: settings, schema, states
    base_history  brings the log up to a version of its base table
    commits       from one state of the log to the actions that record the next
"""
