"""The Delta protocol: log, snapshot, deletion vectors, statistics, data files.

Implements the Delta protocol. Does not depend on Tandem's operations, locks or segments.

    log             package: the transaction log: commits, snapshots, checkpoints, clean-up
    datafiles       package: data files: Parquet in both directions, footers, exact times
    actions         the actions of a commit as values
    schema          a table's schema as a typed tree
    protocol        what the protocol's features allow
    properties      table properties that ask for maintenance
    clustering      the columns of clustered tables, the tags of clustered files
    scan            the rows of a table at a version, as Arrow
    change_feed     what a file of the change data feed is
    row_tracking    row ids and commit versions of the files of a commit
    identity        identity columns: start, step, and the last value that was given
    stats           statistics of files, read in columns
    partitions      rows by partition, the values that a partition column cannot hold, and dates
                    outside of the years 1 to 9999
    char_types      CHAR(n) and VARCHAR(n)
    dv              deletion vectors: load, merge, store
"""
