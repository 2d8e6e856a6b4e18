"""What the log says of the files of a version, and the base: that, written down. Reads no footer
and no data page.

    texts       texts that are seldom read, compressed
    statistics  the statistics of many files, decoded by column
"""
