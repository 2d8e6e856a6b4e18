"""The records of a log: which of a key wins, which a stitched block keeps, and their files.

Never commits, and does not read the transaction log: which blocks there are is an argument.

    records     which record of a key wins, and which records stay
    parts       divides keys into parts, for a log that exceeds the memory
    duplicates  keys that occur twice, where no order decides
    unique      one row a key of rows that are sorted by key
    columns     checks and converts the columns of an append
    blocks      the rows of blocks
    winners     the winners of blocks, and the rows of a file that they match
    merged      what a log merge records of rows and winners
    pruned      which files of the base table can have their keys
    by_key      merges the rows of blocks by key, as streams
    stitch      makes one block of a run
"""
