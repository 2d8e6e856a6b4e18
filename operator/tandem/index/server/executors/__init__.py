"""Executors of an index server: they hold the facts of shards, and narrow files to row groups.

The coordinator alone knows versions, and decides which files an answer has. Executors only take row
groups away; one that is slow, dead or wrong costs narrowing, never a row (decision 0163).

    shards          which shard a segment belongs to
    table_shards    the shards of one table, from version to version
    assignments     the current mapping, shared by threads
    coordinator     knows which executor holds which shard
    registry        the executors that live
    asking          asks them, all at once
    replies         whether a reply can be believed
    slots           an executor as its coordinator sees it
    slot_messages   what the two say to each other
    executor        narrows files of its shards
    held_shards     the facts that it holds, below a limit
    shared_listing  lists stored facts once for all shards of a table
    registration    how executors come and go
"""
