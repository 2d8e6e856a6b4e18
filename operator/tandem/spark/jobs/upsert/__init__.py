"""The job that writes the rows of a source as blocks of a log.

Modules:

    job          reads the source, sorts its rows by key, publishes the result
    sink         the data source that Spark writes the rows to
    block_files  the files of blocks: what both do to rows, without Spark
"""
