"""What Parquet files say of themselves: footers and bloom filters, of any writer.

They may be hostile: lengths are checked before memory is taken for them. No data page is read.

    footers        reads those of many files
    footer         takes the facts of one file from its footer
    footer_format  the parts of a footer that facts are made of
    statistics     the values in the statistics of a column chunk
    bloom          bloom filters
"""
