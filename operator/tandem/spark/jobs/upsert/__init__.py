"""The job that writes the rows of a source as blocks of a log.

Never appends the blocks to the log: the engine does. `block_files` must not import Spark.

    job          reads the source, sorts its rows by key, publishes the result
    sink         the data source that Spark writes the rows to
    block_files  the files of blocks: what both do to rows, without Spark
"""
