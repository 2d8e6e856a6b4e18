"""Copies row groups of Parquet files as bytes: only the footer is new.

For compactions that keep the order of rows. A row group that is copied costs what a copy of its
bytes costs, a twentieth of decoding and encoding it. Nothing here reads the log, or decides what is
compacted.

    footer        what copying must know of a footer
    moved         the same row groups at other offsets
    field_numbers the numbers of a footer's fields
    schema        whether the columns of two files are the same, and those of our writer
    fitness       whether the row groups of a file can be copied, and if not, why
    joined        writes one file of row groups of others, and reads it back
"""
