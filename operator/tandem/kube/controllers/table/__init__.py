"""The controller of a LakeTable.

Modules:

    controller       the life cycle of one resource
    auto_compaction  automatic compaction
    clean_rounds     rounds of cleaning
"""
