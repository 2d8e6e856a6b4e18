"""The controller of a LakeTable.

Never runs an operation: it creates a resource, which has a controller of its own.

    controller       the life cycle of one resource
    auto_compaction  automatic compaction
    log_automation   automatic log compaction and merge
    row_retention    automatic drops of old rows
    children         the operations that these create
    clean_rounds     rounds of cleaning
"""
