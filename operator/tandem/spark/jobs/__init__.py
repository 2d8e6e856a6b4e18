"""The jobs: the `run` of each module executes one, and writes one result.

A job never commits, and never writes to `_delta_log`.

    rewrite         bins in their existing order
    rewrite_divided bins divided by time
    rewrite_sorted  bins sorted or z-ordered
    ordering        the order of sorted rows
    sorted_rows     the sink of sorted rows
    statement       update and delete
    merge           merge
    merge_source    the source of a merge
    merge_writer    the sink of a merge
    source_copy     a copy of the source for the engine
    ingest          ingest, and replace
    replace         package: the rows that a replace concerns
    upsert          package: upserts and deletes by key
    stitch          log compaction
    log_merge       log merge
    index           package: the program of an IndexServer, which is no job: it serves
    warm            runs each job once, for the class-data archive
"""
