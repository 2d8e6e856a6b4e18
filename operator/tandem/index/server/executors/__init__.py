"""Executors of an index server: they hold the facts of shards, and narrow files to row groups.

The coordinator alone knows versions, and decides which files an answer has. Executors only take row
groups away; one that is slow, dead or wrong costs narrowing, never a row (decision 0163).

    shards          which shard a segment belongs to
    coordinator     knows which executor holds which shard
    registry        the executors that live
    asking          asks them, all at once
    slots           an executor as its coordinator sees it
    slot_messages   what the two say to each other
    executor        narrows files of its shards
    registration    how executors come and go
"""
