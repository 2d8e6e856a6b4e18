"""The controller of a LakeTable.

Modules:

    controller       its life
    auto_compaction  automatic compaction
    clean_rounds     rounds of cleaning
"""
