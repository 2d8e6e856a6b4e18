"""The records of a log: which of a key wins, which a stitched block keeps, and their files.

Never commits, and does not read the transaction log: which blocks there are is an argument.

    records     which record of a key wins, and which records stay
    blocks      the rows of blocks
    winners     the winners of blocks, and the rows of a file that they match
    by_key      merges the rows of blocks by key, as streams
    stitch      makes one block of a run
"""
