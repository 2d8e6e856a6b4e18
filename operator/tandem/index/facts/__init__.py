"""Facts of data files: statistics of their row groups, and their bloom filters.

Facts are of an immutable file: believed only whole, and for the path, size and number of rows they
were taken from. They can be missing for any file: then less is excluded, and every row is still
found. What is read here may be hostile: it is checked before memory is taken for it.

    footers        footers and bloom filters
    cache          the facts of a table that questions have needed; the row groups that a condition
                   needs
    files          where facts are stored
    row_groups     the facts of many files, as columns
    bloom_filters  what filters say of the constants of a condition
"""
