"""The job that rewrites files: a compaction, or a rewrite of segments.

Only `job`, `exchange` and `large_bins` may import Spark, each inside of functions.

    job          a task per bin, and the result
    bins         one bin in its order, decoded and encoded
    copied       one bin of which row groups are copied; the live rows of its inputs
    divided      bins divided by time
    sorted_bins  one bin sorted or z-ordered in memory
    codes        the order of rows, and z-values, on integers
    large_bins   larger bins sorted or z-ordered, by tasks that exchange blocks of rows
    exchange     Spark's shuffle as their exchange
"""
