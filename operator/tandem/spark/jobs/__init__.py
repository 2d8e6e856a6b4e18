"""The jobs: the `run` of each module executes one, and writes one result.

A job never commits, and never writes to `_delta_log`.

    apps             which `run` is whose; the main function of `spark_apps/`
    rewrite          package: bins in their order, divided, or sorted
    statement        update and delete; rounds over Arrow, or by Spark
    local_statement  a task of it over Arrow, without Spark's rows; the tasks of a round
    edits            files without some rows, and with others replaced
    merge            merge
    local_merge      a merge over Arrow, without Spark's rows; the answer of any merge
    spark_merge      a merge by Spark: the source, the join, and what its tasks write
    merge_source     a source as an Arrow table, and the copy of a source for the engine
    ingest           ingest, and replace: the rows in its scope
    upsert           upserts and deletes by key
    block_files      the files of their blocks, without Spark
    stitch           log compaction
    log_merge        log merge
    index            package: the program of an IndexServer, which is no job: it serves
    warm             runs the common jobs once, for the class-data archive
"""
