"""A writer that knows nothing of us: `python -m support.foreign.writer LOCATION WHAT`.

Imports deltalake and little else, so that it starts in a fraction of a second.
"""

from __future__ import annotations

import sys

from deltalake import DeltaTable, write_deltalake

from support.lake import rows


def write(location: str, what: str) -> None:
    """`append` rows 100 to 104; `update` sets `v` to -1 where `k = 2` in half of the files. The
    same `by the log`: a log writer's upserts have the same effect. `delete` where `k = 2` in the
    first file."""
    match what:
        case "append by the log":
            _upsert(location, rows.rows(range(100, 105)))
        case "update by the log":
            _upsert(location, tuple((n, 2, -1) for n in range(20) if n % 5 == 2))
        case "append":
            write_deltalake(location, rows.table(rows.rows(range(100, 105))), mode="append")
        case "update":
            DeltaTable(location).update(predicate="k = 2 AND id < 20", updates={"v": "-1"})
        case "delete":
            DeltaTable(location).delete("k = 2 AND id < 10")
        case _:
            raise ValueError(what)


def _upsert(location: str, found: rows.Rows) -> None:
    from support.lake.log_blocks import LogBlocks

    LogBlocks(location, "another").upsert(found)


if __name__ == "__main__":
    write(*sys.argv[1:])
