"""The table as kinds of operations see it: live files, commits since, changes, names of segments.

Decides nothing about an operation.

    job_files           from live files to job inputs, from job outputs to `add` actions
    copied_files        what of a compaction's inputs is copied
    snapshot_view       the live files as reconciliation sees them
    commit_history      what was committed since a version
    heirs               files that hold what is left of inputs that are gone
    table_changes       schema and protocol changes in between
    sources             sources: their columns, and the version of a Delta table
    prerequisite_merge  the log merge that has to end before a statement plans
    output_roots        which loads the outputs of a compaction were made from
    segment_numbers     names of new segments
    row_scope           the rows of files that a replace concerns
    empty_chunks        the chunks that a replace leaves empty
    time_column         the table's time column in its files
    lock_times          where the files of a plan lie in time, for its locks
    chunk_writes        what other writers changed in the chunks of an exclusive attempt
"""
