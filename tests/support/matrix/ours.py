"""Our operations in the W matrix: one line each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from support.lake.lake import Lake
from support.matrix.rows import (
    COLUMNS,
    HOURS,
    Model,
    Row,
    Rows,
    Test,
    after,
    appended,
    deleted,
    hour,
    moment,
    new,
    same,
    updated,
)
from tandem.mergelog import LogSettings, LogWriter, ensure_log
from tandem.mergelog.log_table import MergeLog
from tandem.spec.resources import Operation


@dataclass(frozen=True)
class Ours:
    """`touches`: which rows it writes to new files without changing them; None if it is no
    rewrite. `spark`: its job needs Spark. `prepare`: what it needs of a table; may refuse it.
    `serializable`: a blind append that committed before it comes before it. `partitioned`: it is
    done to tables that are partitioned by `k`."""

    make: Callable[[Lake], Operation]
    model: Model = same
    touches: Test | None = lambda _: True
    spark: bool = False
    prepare: Callable[[Lake], None] | None = None
    serializable: bool = False
    partitioned: bool = False


def _laid_out(lake: Lake, strategy: str, *columns: str) -> Operation:
    """By what is no column of partitions: all rows of a file have one value of those."""
    if lake.log.snapshot().metadata.partition_columns:
        columns = tuple({"k": "v", "v": "id"}[name] for name in columns)
    return lake.compaction("SemiMajor", layout={"strategy": strategy, "columns": [*columns]})


_SOURCE = [new(n, n % 5, -10 * n) for n in (4, 6, 16, 21, 102, 201, 300)]
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
        "whenNotMatched": [{"insert": {"values": {name: f"s.{name}" for name in COLUMNS}}}],
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


_UPSERTED = [new(n, n % 5, -20 * n) for n in (5, 17, 22, 103, 201, 301)]
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
    upserted = [{column if n == "v" else n: v for n, v in row.items()} for row in _UPSERTED]
    return [*(row for row in of if row["id"] not in gone), *upserted]


_INTERVALS = ((5, 20), (25, 38))
"""Hours that replaces take: one file lies in them, all others straddle a border."""

_PARTITIONS = (1, 3)
_BROUGHT = [new(n, n % 5, n) for n in range(400, 500) if 10 <= n % HOURS < 15]
_BROUGHT_TO_PARTITIONS = [row for row in _BROUGHT if row["k"] in _PARTITIONS]
"""What replaces bring: nothing that was there."""


def _in_intervals(row: Row) -> bool:
    return any(start <= hour(row) < end for start, end in _INTERVALS)


def _in_partitions(row: Row) -> bool:
    return row["k"] in _PARTITIONS


def _old(row: Row) -> bool:
    """Whether it descends from a row that a table begins with: foreign writers keep its id."""
    return bool(row["id"] < HOURS)


def _of_start(row: Row) -> bool:
    return _in_intervals(row) and _old(row)


def _replace(source: Sequence[Row] = (), **spec: Any) -> Callable[[Lake], Operation]:
    """Of the intervals, unless it says otherwise; a drop if there is no source."""
    spans = [f"{moment(start):%FT%TZ}/{moment(end):%FT%TZ}" for start, end in _INTERVALS]

    def make(lake: Lake) -> Operation:
        body = {"replace": {"intervals": spans}, **spec}
        if source:
            location = lake.source(pa.Table.from_pylist([*source])).as_uri()
            body["source"] = {"format": "Parquet", "location": location}
        return lake.resource("TableReplace", body)

    return make


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
    "replace AtStart": Ours(
        _replace(_BROUGHT), after(deleted(_of_start), appended(_BROUGHT)), touches=None
    ),
    "replace AtCommit": Ours(
        _replace(_BROUGHT, scope="AtCommit"),
        after(deleted(_in_intervals), appended(_BROUGHT)),
        touches=None,
        serializable=True,
    ),
    "replace partitions": Ours(
        _replace(
            _BROUGHT_TO_PARTITIONS,
            scope="AtCommit",
            replace={"partitions": [{"k": str(k)} for k in _PARTITIONS]},
        ),
        after(deleted(_in_partitions), appended(_BROUGHT_TO_PARTITIONS)),
        touches=None,
        serializable=True,
        partitioned=True,
    ),
    "drop": Ours(_replace(), deleted(_of_start), touches=None),
}

REFUSED_WITH_TRACKING = frozenset[tuple[str, bool]]()
"""Operations that are refused on tables with row tracking, with deletion vectors or without."""

NEXT: dict[str, Ours] = {
    "bin-pack": OURS["bin-pack"],
    "update": Ours(
        lambda lake: lake.update("k = 2 OR id = 100", v="v + 7"),
        updated(lambda row: row["k"] == 2 or row["id"] == 100, v=lambda row: row["v"] + 7),
        touches=None,
    ),
}
"""What must work after every cell."""
