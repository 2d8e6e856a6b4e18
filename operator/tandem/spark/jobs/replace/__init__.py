"""The rows that are in the scope of a replace, as its job finds them; the rest is an ingest.

Must not decide what becomes of these rows: the engine does, at the commit.

    source_rows  of a source
    file_rows    of files of the table
"""
