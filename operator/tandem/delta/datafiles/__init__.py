"""Data files: Parquet of any writer to Arrow, and Arrow to Parquet that every reader can trust.

Knows a file and a schema, but neither the log nor which rows are deleted.

    reader           record batches of the table's schema
    writer           files cut at a target size, with statistics
    conform          arrays of a file to the table's types
    schema_mismatch  types and values of a file that a column cannot hold
    times            dates and times as Spark reads them, or an error
    int96            INT96 timestamps, exactly
    footer           mends the Parquet footer while it is written
    float_bounds     bounds of floats that every reader may skip by
    stats            Delta statistics from a footer
    missing          the error for a file that is gone
"""
