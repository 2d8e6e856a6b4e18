"""Sources of ingests and merges: every value with its file and line, or `SourceUnreadable`.

Never guesses: a value that does not fit is an error, and no row is dropped.

    readers           a source as a DataFrame; keeps a merge's source at one state
    options           options of a source
    text_frames       CSV and JSON as DataFrames
    arrow_rows        a small source in the columns of a table, without Spark
    text_records      their records, as texts with locations
    text_files        files as whole lines
    csv_text          RFC 4180 as arrays of texts, and the columns of a file
    json_text         JSON lines as arrays of texts, and their fields; pure
    casts             values as those of a table: columns by name, texts exactly, CHAR(n)
"""
