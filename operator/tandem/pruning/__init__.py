"""Which files a condition may affect, decided for all files of a version at once.

Pure: works on the columns of a snapshot that was read elsewhere, and creates no Python object per
file. It must never exclude a file that holds a matching row: an unknown file may match. The
statistics themselves are read in `tandem.delta.stats`.

    selection   the entry point: selects the files that a condition may affect
    predicate   a condition over the bounds of the columns that it names
    bounds      one column's bounds, and how far they are reliable
    scope       which files have rows in intervals and partitions; times in statistics and partition
                values
"""
