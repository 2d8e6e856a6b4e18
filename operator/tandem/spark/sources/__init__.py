"""Sources of ingests and merges: every value with its file and line, or `SourceUnreadable`.

Never guesses: a value that does not fit is an error, and no row is dropped.

    text              package: CSV and JSON text
    readers           a source as a DataFrame
    footers           schemas of Parquet files
    options           options of a source
    text_frames       CSV and JSON as DataFrames
    text_casts        texts as values of a schema
    char_types        CHAR(n) and VARCHAR(n)
    schema_alignment  columns by name, at every level
    source_pin        keeps a merge's source at one state
    row_hash          an identity for each source row
    arrow_row_hash    the same identity over Arrow
"""
