"""The job that rewrites files: a compaction, or a rewrite of segments.

`bins`, `copied`, `decoded_rows`, `divided` and `row_maps` must not import Spark.

    job          a task per bin, and the result
    bins         one bin in its order, decoded and encoded
    decoded_rows the live rows of its inputs
    copied       one bin of which row groups are copied
    divided      bins divided by time
    row_maps     where the rows of a bin went
    reordered    bins sorted or z-ordered
    ordering     the order of sorted rows
    sorted_rows  the sink of sorted rows
"""
