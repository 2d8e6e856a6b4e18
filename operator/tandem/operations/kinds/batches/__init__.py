"""A compaction whose input exceeds `maxBytesPerCommit`: how it is cut, and which batch is next.

Never commits, and decides nothing about rows: each batch is a compaction like any other
(docs/decisions/0177).

    cut       which bins of a plan are committed together; pure
    record    the batches of an operation, as stored once for all of its processes
    resource  a batch as an operation of its own
    progress  which batch is next, and what those before it did
"""
