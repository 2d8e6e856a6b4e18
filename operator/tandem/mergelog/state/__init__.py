"""What a log says: its blocks, its mark, and up to which version it has processed its base table.

Reads transaction logs only: never opens a block or a data file, and never commits.

    model         blocks, and what a version of the log says
    boundaries    what a commit of the base table means for the log, and the fold over commits
    restored      which versions a restore by time may have restored
    log_table     the log as a Delta table: settings, schema, states
    base_history  brings the log up to a version of its base table
    own_commits   refuses commits that are not Tandem's
    instants      which versions are instants, and how many there are since a merge
    retained      what the versions within a retention need of the log
    commits       from one state of the log to the actions that record the next
"""
