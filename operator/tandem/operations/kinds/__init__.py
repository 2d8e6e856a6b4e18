"""The logic of each kind of operation, and what several kinds share.

Makes plans, jobs and change sets; never performs an effect and never commits.

    compaction       `TableCompaction`
    segment_rewrite  `SegmentRewrite`
    update           `TableUpdate`: update and delete
    merge            `TableUpdate`: merge
    ingest           `TableIngest`
    replace          `TableReplace`
    upsert           `TableUpdate`: upsert and deleteKeys; `TableIngest` on a merge-on-read table
    log_compaction   `LogCompaction`
    log_merge        `TableCompaction` of type `LogMerge`
    rewrite          what rewrites share
    row_level        what updates, deletes and merges share
    statement_rounds which rows of a statement are evaluated next, and where
    statement_rounds  the progress of a statement, and what its commit changes
    batches          a compaction that is committed in batches
    table            package: the table as kinds see it
"""
