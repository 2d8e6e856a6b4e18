"""Which files a condition may affect, decided for all files of a version at once.

Pure: works on the columns of a snapshot that was read elsewhere, and makes no Python object per
file. It may never exclude a file that holds a matching row: what is not known may match. The
statistics themselves are read in `tandem.delta.stats`.

    selection   the entry point: a condition to the files that it may affect
    predicate   a condition over bounds
    keys        the keys of a merge's source over bounds
    files       the bounds of the columns that a condition names
    bounds      one column's bounds, and what they can be trusted for
    constants   values that bounds are compared with
    partitions  partition values by column
    times       times in statistics and partition values
"""
