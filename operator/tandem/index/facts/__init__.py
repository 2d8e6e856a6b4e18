"""Facts of data files: statistics of their row groups, and their bloom filters.

Facts are of an immutable file: believed only whole, and for the path, size and number of rows they
were taken from. They can be missing for any file: then less is excluded, and every row is still
found. What is read here may be hostile: it is checked before memory is taken for it.

    parquet        package: footers and bloom filters
    cache          the facts of a table that questions have needed
    held           facts in memory, within a limit
    held_filters   bloom filters in memory
    places         where facts are stored
    written        facts of files that are being written
    model          the facts of many files, as columns
    stored         types of columns as they are stored
    columns        one column's bounds in many row groups
    narrow         the row groups that a condition needs
    filtered       what filters say of the constants of a condition
    encoded        constants as a column's filter hashes them
    packed         facts as bytes, and the ones to believe
    buffers        Arrow arrays as bytes
    threads        several requests at once
"""
