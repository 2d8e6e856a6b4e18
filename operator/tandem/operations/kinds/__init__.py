"""The logic of each kind of operation, and what several kinds share.

Makes plans, jobs and change sets; never performs an effect and never commits.

    compaction       `TableCompaction`
    segment_rewrite  `SegmentRewrite`
    update           `TableUpdate`: update and delete
    merge            `TableUpdate`: merge
    ingest           `TableIngest`
    rewrite          what rewrites share
    row_level        what updates, deletes and merges share
    statement_run    the progress of a statement, and what its commit changes
    job_files        from live files to job inputs, from job outputs to `add` actions
    snapshot_view    the live files as reconciliation sees them
    commit_history   what was committed since a version
    table_changes    schema and protocol changes in between
    segment_numbers  names of new segments
    time_column      the table's time column in its files
"""
