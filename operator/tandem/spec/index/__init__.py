"""What resources say about the index of tables.

Decides nothing: the index is a cache.

    table          the block `index` of a LakeTable
    bloom_filters  columns that get bloom filters
    server         `IndexServer`
"""
