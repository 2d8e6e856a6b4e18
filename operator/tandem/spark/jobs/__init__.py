"""The jobs: the `run` of each module executes one, and writes one result.

A job never commits, and never writes to `_delta_log`.

    rewrite          package: bins in their order, divided, or sorted
    statement        update and delete
    local_statement  a task of it over Arrow, without Spark's rows
    arrow_tasks      the inputs of a round as tasks over Arrow
    edits            files without some rows, and with others replaced
    merge            merge
    local_merge      package: a merge over Arrow, without Spark's rows
    merge_frames     a merge by Spark: the join
    merge_source     the source of a merge
    merge_writer     the sink of a merge
    source_copy      a copy of the source for the engine
    ingest           ingest, and replace
    replace          package: the rows that a replace concerns
    upsert           package: upserts and deletes by key
    stitch           log compaction
    log_merge        log merge
    index            package: the program of an IndexServer, which is no job: it serves
    warm             runs each job once, for the class-data archive
"""
