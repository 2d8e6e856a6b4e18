"""Row maps: where each input row of a rewrite is in its outputs.

Pure: positions and counts only. With a row map, a delete that was committed during a rewrite is
replayed onto the rewritten files.

    rowmap         `RowMap` and its builder
    run_table      files, runs and sorted groups (rows that a sort or z-order reordered), and their
                   lookup arrays
    binary_format  row maps as bytes: versioned and checksummed
"""
