"""What the log says of the rows of many files: held compressed, and decoded by column. Pure: no
file is read here.

    texts   texts that are seldom read, compressed
    held    the statistics of entries
"""
