"""Our operations in the W matrix: one line each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from support.lake.lake import Lake
from support.matrix.rows import Model, Rows, Test, deleted, same, updated
from tandem.mergelog import LogSettings, LogWriter, ensure_log
from tandem.mergelog.state.log_table import MergeLog
from tandem.spec.resources import Operation


@dataclass(frozen=True)
class Ours:
    """`touches`: which rows it writes to new files without changing them; None if it is no
    rewrite. `spark`: its job needs Spark. `prepare`: what it needs of a table; may refuse it."""

    make: Callable[[Lake], Operation]
    model: Model = same
    touches: Test | None = lambda _: True
    spark: bool = False
    prepare: Callable[[Lake], None] | None = None


def _laid_out(lake: Lake, strategy: str, *columns: str) -> Operation:
    """By what is no column of partitions: all rows of a file have one value of those."""
    if lake.log.snapshot().metadata.partition_columns:
        columns = tuple({"k": "v", "v": "id"}[name] for name in columns)
    return lake.compaction("SemiMajor", layout={"strategy": strategy, "columns": [*columns]})


_SOURCE = [{"id": n, "k": n % 5, "v": -10 * n} for n in (4, 6, 16, 21, 102, 201, 300)]
"""What our merge brings: keys that are there, keys that foreign writers may bring, a new one."""

_MUCH = 1500


def _merge(lake: Lake) -> Operation:
    """Rows with much are deleted, others updated; new ones inserted."""
    lake.sources.mkdir(exist_ok=True)
    source = lake.sources / "merge.parquet"
    pq.write_table(pa.Table.from_pylist(_SOURCE), source)
    statement = {
        "source": {"format": "Parquet", "location": source.as_uri()},
        "on": "t.id = s.id",
        "whenMatched": [
            {"where": f"t.v > {_MUCH}", "delete": {}},
            {"update": {"set": {"v": "s.v"}}},
        ],
        "whenNotMatched": [{"insert": {"values": {"id": "s.id", "k": "s.k", "v": "s.v"}}}],
    }
    return lake.resource("TableUpdate", {"merge": statement})


def _merged(of: Rows) -> Rows:
    source = {row["id"]: row for row in _SOURCE}
    there = {row["id"] for row in of}
    kept = [row for row in of if row["id"] not in source or row["v"] <= _MUCH]
    updated_ = [
        {**row, "v": source[row["id"]]["v"]} if row["id"] in source else row for row in kept
    ]
    return [*updated_, *(row for row in _SOURCE if row["id"] not in there)]


_UPSERTED = [{"id": n, "k": n % 5, "v": -20 * n} for n in (5, 17, 22, 103, 201, 301)]
_DELETED = (6, 18, 104, 302)
"""What the log has: keys that are there, keys that foreign writers may bring, new ones."""


def _with_log(lake: Lake) -> None:
    """Raises: UnsupportedFeature."""
    log = MergeLog(lake.log)
    ensure_log(log, LogSettings(("id",), ""), now_ms=0, nonce=lake.location)
    with LogWriter(log, "matrix") as writer:
        writer.append(pa.Table.from_pylist(_UPSERTED[:4]), batch=0)
        deletes = pa.Table.from_pylist([{"id": n} for n in _DELETED])
        writer.append(pa.Table.from_pylist(_UPSERTED[4:]), deletes, batch=1)


def _log_merged(of: Rows) -> Rows:
    gone = {*_DELETED, *(row["id"] for row in _UPSERTED)}
    # A rename of the base table renames the column of the log's rows, too.
    column = "u" if any("u" in row for row in of) else "v"
    upserted = [{"id": row["id"], "k": row["k"], column: row["v"]} for row in _UPSERTED]
    return [*(row for row in of if row["id"] not in gone), *upserted]


LOG_MERGE = "log merge"
OURS: dict[str, Ours] = {
    "bin-pack": Ours(lambda lake: lake.compaction("SemiMajor")),
    "sort": Ours(lambda lake: _laid_out(lake, "Sort", "k")),
    "z-order": Ours(lambda lake: _laid_out(lake, "ZOrder", "k", "v")),
    "segment rewrite": Ours(
        lambda lake: lake.resource(
            "SegmentRewrite",
            {
                "segments": lake.names[:2],
                "rewrite": {"purgeDeleted": True, "recompress": {"codec": "gzip"}},
            },
        ),
        touches=lambda row: row["id"] < 20,
    ),
    "update": Ours(
        lambda lake: lake.update("k = 1", v="v * 2"),
        updated(lambda row: row["k"] == 1, v=lambda row: row["v"] * 2),
        touches=None,
    ),
    "merge": Ours(_merge, _merged, touches=None, spark=True),
    "delete": Ours(
        lambda lake: lake.delete("k = 3 OR id = 2"),
        deleted(lambda row: row["k"] == 3 or row["id"] == 2),
        touches=None,
    ),
    LOG_MERGE: Ours(
        lambda lake: lake.compaction("LogMerge"), _log_merged, touches=None, prepare=_with_log
    ),
}

NEXT: dict[str, Ours] = {
    "bin-pack": OURS["bin-pack"],
    "update": Ours(
        lambda lake: lake.update("k = 2 OR id = 100", v="v + 7"),
        updated(lambda row: row["k"] == 2 or row["id"] == 100, v=lambda row: row["v"] + 7),
        touches=None,
    ),
}
"""What must work after every cell."""
