"""A writer that knows nothing of us: `python -m support.foreign.writer LOCATION WHAT`.

Imports deltalake and little else, so that it starts in a fraction of a second.
"""

from __future__ import annotations

import sys

from deltalake import DeltaTable, write_deltalake

from support.lake import rows


def write(location: str, what: str) -> None:
    """`append` rows 100 to 104; `update` sets `v` to -1 where `k = 2` in half of the files."""
    match what:
        case "append":
            write_deltalake(location, rows.table(rows.rows(range(100, 105))), mode="append")
        case "update":
            DeltaTable(location).update(predicate="k = 2 AND id < 20", updates={"v": "-1"})
        case _:
            raise ValueError(what)


if __name__ == "__main__":
    write(*sys.argv[1:])
