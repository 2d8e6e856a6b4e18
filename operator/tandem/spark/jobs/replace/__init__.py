"""The rows that are in the scope of a replace; the rest of its job is that of an ingest.

source_rows  of a source
file_rows    of files of the table
"""
