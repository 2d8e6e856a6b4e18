"""`spark.read.format("tandem")` and `writeStream.format("tandem")`, for Spark sessions of users.

`register(spark)` makes the format known to a session. Executors need this package, and credentials
of the store in their environment. Not for jobs of operations, which read files that the engine has
chosen (`tandem.spark.runtime.datasource`).

    source   the data source, and `register`: the merged view as tasks, without the files that
             filters leave out
    options  the options of reads and writes
    writer   appends to the log: streams and single writes
"""

from tandem.spark.connector.source import register

__all__ = ["register"]
