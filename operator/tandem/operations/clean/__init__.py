"""`tandem clean`, and the operator's rounds: removes files that no reader needs any more.

Does not decide which files these are: `tandem.planning.cleaning` does.

    clean      a round: facts, decision, deletion
    block_log  the same for the log of a merge-on-read table
    facts      the operations of a table; the files that are gone, who removed them and when
"""
