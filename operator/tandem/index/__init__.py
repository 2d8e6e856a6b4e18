"""The index of a table: which files a condition needs, and numbers that the log already says.

A cache of what is in the log and in footers: it decides nothing, holds no lock, and losing it costs
time, never an answer. Every answer is of exactly one version. Data pages are read by `rows` only.

    statistics    what the log says of the rows of files; the least and greatest values of a column
    facts         package: statistics of row groups, and bloom filters
    server        package: the index of many tables as a service
    base          the entries of a version, written down
    packed        arrays as bytes, for facts and bases
    library       count, bounds, splits, reader, paths: in the caller's process
    table         a table that is followed from commit to commit
    window        its entries over a window of versions, and views of one
    entries       entries, and which of them a condition needs
    answers       splits, certain numbers and bounds
    narrowing     which row groups of files a condition needs
    rows          reads splits, and finishes numbers
"""

from typing import TYPE_CHECKING

from tandem.exports import exports

if TYPE_CHECKING:
    from tandem.index.library import (
        EVERYTHING,
        Query,
        TableIndex,
        bounds,
        count,
        open_index,
        paths,
        reader,
        splits,
    )

__all__ = [
    "EVERYTHING",
    "Query",
    "TableIndex",
    "bounds",
    "count",
    "open_index",
    "paths",
    "reader",
    "splits",
]

__getattr__ = exports(__name__, dict.fromkeys(__all__, "library"))
