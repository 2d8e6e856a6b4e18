"""The logic of each kind of operation, and what several kinds share.

Makes plans, jobs and change sets; never performs an effect and never commits.

    compaction       `TableCompaction`
    segment_rewrite  `SegmentRewrite`
    row_level        `TableUpdate`: update and delete; what merge shares with them
    merge            `TableUpdate`: merge
    ingest           `TableIngest`
    replace          `TableReplace`
    upsert           `TableUpdate`: upsert and deleteKeys; `TableIngest` on a merge-on-read table
    log_compaction   `LogCompaction`
    log_merge        `TableCompaction` of type `LogMerge`; the one before a statement

What several kinds share:

    rewrite             rewrites: compactions, segment rewrites, log merges
    statement_rounds    which rows of a statement are evaluated next, and what its commit changes
    batches             a compaction that is committed in batches
    job_files           from live files to job inputs, from job outputs to `add` actions
    commit_history      what was committed since a version; what follows from changes of schema and
                        protocol
    heirs               files that hold what is left of inputs that are gone
    sources             sources: their columns, and the version of a Delta table
    row_scope           the rows of files that a replace concerns
    time_column         the table's time column in its files
"""
