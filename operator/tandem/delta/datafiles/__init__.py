"""Data files: reads Parquet of any writer as Arrow, and writes Parquet for any reader.

Depends on a file and a schema only: not on the log or on deletion vectors.

    reader           record batches of the table's schema
    writer           files cut at a target size, with statistics
    conform          converts arrays of a file to the table's types; types and values that a column
                     cannot hold
    times            dates and times as Spark reads them, or an error
    bloom_filters    bloom filters of new files
    copyable         whether row groups can be copied: the columns of two files are the same
    joined_files     writes one file of row groups and columns of others as bytes, and reads it back
    row_ids          the columns of row ids in copied row groups
    progressions     columns of numbers that ascend evenly, written without the numbers
    encoded_columns  new values of rows, and encodes columns of a row group as a file has them
    edited_files     edits of one file, each a new file
    change_files     rows of a file for the change data feed
    footer           what a Parquet footer says
    footer_edit      a footer amended, or with row groups at other places
    pages            headers of pages, and their checksums
    thrift           Thrift's compact protocol
    stats            Delta statistics from a footer, and bounds of floats that are safe for data
                     skipping in every reader
"""
