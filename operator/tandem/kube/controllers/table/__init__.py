"""The controller of a LakeTable.

Never runs a compaction: it creates a resource, which has a controller of its own.

    controller       the life cycle of one resource
    auto_compaction  automatic compaction
    log_automation   automatic log compaction and merge
    children         the compactions that both create
    clean_rounds     rounds of cleaning
"""
