"""The transaction log of a table (protocol, "Delta Log Entries").

Reads and writes below `_delta_log` only; never opens a data file.

    delta_log         `DeltaLog`: read versions, commit the next one
    commit_log        `CommitLog`, what decides which commits there are: the log folder
    catalog_log       or the table's catalog
    load              a snapshot from a checkpoint and the commits after it
    listing           which commits and checkpoints there are, and names of the objects in
                      `_delta_log`
    codec             the JSON text of commits and actions
    files             the live files as an Arrow table; replay as a pure fold
    snapshot          the state of a table at a version; the `commitInfo` of our commits, and the
                      `remove` of a live file
    checkpoint        reads checkpoints
    maintenance       checkpoint (classic V1) and clean-up after a commit
"""
