"""Row tracking without Spark: it is enabled, and ids are read, as the protocol defines them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import pyarrow.parquet as pq

from support.lake.lake import Lake
from tandem.delta import dv
from tandem.delta.actions import (
    BASE_ROW_ID,
    ROW_COMMIT_VERSION,
    Action,
    AddFile,
    CommitInfo,
    DomainMetadata,
)
from tandem.delta.protocol import writer_features
from tandem.delta.row_tracking import DOMAIN

NAMES = {
    f"delta.rowTracking.materializedRow{n}ColumnName": f"_{n}" for n in ("Id", "CommitVersion")
}


def track(lake: Lake) -> None:
    """Enable row tracking, as Spark does it with a backfill: in the order of paths."""
    snapshot = lake.log.snapshot()
    protocol, metadata = snapshot.protocol, snapshot.metadata
    features = writer_features(protocol) | {"rowTracking", "domainMetadata"}
    tracked = {**metadata.configuration, "delta.enableRowTracking": "true", **NAMES}
    adds: list[AddFile] = []
    count = 0
    for add in sorted(snapshot.adds(), key=lambda add: add.logged_path):
        extra = {**add.extra, BASE_ROW_ID: count, ROW_COMMIT_VERSION: snapshot.version + 1}
        adds.append(replace(add, data_change=False, extra=extra))
        count += json.loads(str(add.stats))["numRecords"]
    mark = json.dumps({"rowIdHighWaterMark": count - 1})
    actions: list[Action] = [
        CommitInfo({"operation": "SET TBLPROPERTIES"}),
        replace(protocol, min_writer=7, writer_features=features),
        replace(metadata, configuration=tracked),
        DomainMetadata(DOMAIN, mark, removed=False),
        *adds,
    ]
    lake.log.put_commit(snapshot.version + 1, actions, token="track")


def rows_in_files(
    lake: Lake, version: int | None = None
) -> Iterator[tuple[int, int, Mapping[str, Any]]]:
    """The id, the commit version and the values, by physical name, of each row of a version or the
    latest one."""
    snapshot = lake.log.snapshot(version)
    columns = [snapshot.configuration[name] for name in NAMES]
    for add in snapshot.adds():
        table = pq.read_table(lake.path / add.path, partitioning=None)
        dead = dv.load(lake.store, add.deletion_vector) if add.deletion_vector else ()
        base, default = add.extra[BASE_ROW_ID], add.extra[ROW_COMMIT_VERSION]
        for at, row in enumerate(table.to_pylist()):
            row_id, own = (row.pop(name, None) for name in columns)
            if at not in dead:
                row_id = base + at if row_id is None else row_id
                own = default if own is None else own
                # INT96, as of Spark, has no time zone.
                values = {
                    name: value.replace(tzinfo=None) if isinstance(value, datetime) else value
                    for name, value in row.items()
                }
                yield row_id, own, {**values, **add.partition_values}


def in_files(lake: Lake, version: int | None = None) -> Mapping[int, tuple[int, int]]:
    """The row id and the commit version of each row, by its column `id`; each id once."""
    found: dict[int, tuple[int, int]] = {}
    for row_id, own, values in rows_in_files(lake, version):
        assert values["id"] not in found
        found[values["id"]] = (row_id, own)
    assert len({row_id for row_id, _ in found.values()}) == len(found)
    return found
