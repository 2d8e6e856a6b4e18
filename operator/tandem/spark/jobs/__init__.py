"""The jobs: the `run` of each module executes one, and writes one result.

A job never commits, and never writes to `_delta_log`. Of the modules of rewrites, only `rewrite`
and `large_bins` may import Spark, each inside of functions.

    apps             which `run` is whose; the main function of `spark_apps/`
    rewrite          compactions and rewrites of segments: a task per bin, and the result
    bins             one bin in its order, decoded and encoded
    copied_bins      one bin of which row groups are copied; the live rows of its inputs
    divided_bins     bins divided by time
    sorted_bins      one bin sorted or z-ordered in memory
    sort_codes       the order of rows, and z-values, on integers
    large_bins       larger bins sorted or z-ordered, by tasks that exchange blocks of rows
    statement        update and delete; rounds over Arrow, or by Spark
    local_statement  a task of it over Arrow, without Spark's rows; the tasks of a round
    edits            files without some rows, and with others replaced
    merge            merge
    local_merge      a merge over Arrow, without Spark's rows; the answer of any merge
    spark_merge      a merge by Spark: the source, the join, and what its tasks write
    merge_source     a source as an Arrow table, the copy of a source for the engine, and an
                     identity for each source row, by Spark and over Arrow
    ingest           ingest, and replace: the rows in its scope
    upsert           upserts and deletes by key; the files of their blocks, without Spark
    stitch           log compaction
    log_merge        log merge
    index_server     the program of an IndexServer, which is no job: it serves, and never ends; its
                     executors, as tasks that do not end
    warm             runs the common jobs once, for the class-data archive
"""
