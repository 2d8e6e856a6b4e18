"""Sources of ingests and merges: every value with its file and line, or `SourceUnreadable`.

Never guesses: a value that does not fit is an error, and no row is dropped.

    text              package: CSV and JSON text
    readers           a source as a DataFrame
    options           its options
    text_frames       CSV and JSON as DataFrames
    text_casts        texts as values of a schema
    char_types        CHAR(n) and VARCHAR(n)
    schema_alignment  columns by name, at every level
    source_pin        holds a merge's source unchanged
    row_hash          an identity for each source row
"""
