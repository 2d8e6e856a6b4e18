"""The job that rewrites files: a compaction, or a rewrite of segments.

`bins`, `codes`, `copied`, `decoded_rows`, `divided`, `ordering`, `row_maps` and `sorted_bins` must
not import Spark.

    job          a task per bin, and the result
    bins         one bin in its order, decoded and encoded
    decoded_rows the live rows of its inputs
    copied       one bin of which row groups are copied
    divided      bins divided by time
    sorted_bins  one bin sorted or z-ordered in memory
    codes        the order of rows, on integers
    row_maps     where the rows of a bin went
    reordered    larger bins sorted or z-ordered by Spark
    ordering     the cuts of such bins, and z-values
    sorted_rows  the source and sink of their rows
"""
