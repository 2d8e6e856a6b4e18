"""Data files: reads Parquet of any writer as Arrow, and writes Parquet for any reader.

Depends on a file and a schema only: not on the log or on deletion vectors.

    reader           record batches of the table's schema
    writer           files cut at a target size, with statistics
    names            paths of new files
    conform          converts arrays of a file to the table's types
    schema_mismatch  types and values of a file that a column cannot hold
    times            dates and times as Spark reads them, or an error
    int96            INT96 timestamps, exactly
    bloom_filters    bloom filters of new files
    filter_columns   of which columns they are
    rowgroups        package: row groups that are copied as bytes, and edits of files
    footer           amends the Parquet footer while it is written
    page_walk        headers of pages, and their checksums
    pages            how much the pages of a file hold
    thrift           Thrift's compact protocol
    float_bounds     bounds of floats that are safe for data skipping in every reader
    stats            Delta statistics from a footer
    missing          the errors for a file that is gone, or cannot be read
"""
