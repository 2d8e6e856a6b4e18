"""Row tracking that is enabled without Spark."""

from __future__ import annotations

import json
from dataclasses import replace

from support.lake.lake import Lake
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
