"""Copies row groups of Parquet files as bytes: only the footer is new.

For compactions that keep the order of rows, and for edits: a file's rows without some, and with new
values for others. A row group that is copied costs what a copy of its bytes costs, a twentieth of
decoding and encoding it. Nothing here reads the log, or decides what is compacted or edited.

    schema      whether the columns of two files are the same, and those of our writer
    joined      writes one file of row groups and columns of others, and reads it back
    encoded     new values of rows, and encodes columns of a row group as a file has them
    edited      edits of one file, each a new file
"""
