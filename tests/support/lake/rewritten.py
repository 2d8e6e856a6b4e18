"""Tables that are rewritten or replaced, and how to look at what became of their segments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from support.lake.lake import Lake, batch, loads
from support.lake.rows import Rows, k_is, without
from tandem.spec.resources import Operation
from tandem.timeline.segments import Segment

PURGE = {"purgeDeleted": True}
ALL = {"intervals": ["all"]}
RECOMPRESS = {"recompress": {"codec": "gzip", "level": 1}}


def rewrite(lake: Lake, *names: str, **wish: Any) -> Operation:
    return lake.resource("SegmentRewrite", {"segments": list(names), "rewrite": wish or PURGE})


def replace_all(lake: Lake, rows: Rows, **spec: Any) -> Operation:
    """All rows of the table, by these."""
    source = {"format": "Parquet", "location": lake.source(rows).as_uri()}
    return lake.resource("TableReplace", {"replace": ALL, "source": source, **spec})


def segment(lake: Lake, name: str) -> Segment:
    [found] = [each for each in lake.live if each.name == name]
    return found


def paths(lake: Lake, name: str) -> set[str]:
    return {file.path for file in segment(lake, name).files}


def codecs(lake: Lake, name: str) -> set[str]:
    """Of all files of a segment."""
    found = set()
    for file in segment(lake, name).files:
        group = pq.ParquetFile(lake.path / file.path).metadata.row_group(0)
        found |= {group.column(n).compression for n in range(group.num_columns)}
    return found


def in_order(lake: Lake, name: str) -> bool:
    """Whether the rows of each file of a segment lie by k and id."""
    for file in segment(lake, name).files:
        rows = pq.read_table(lake.path / file.path, columns=["k", "id"]).to_pylist()
        if rows != sorted(rows, key=lambda row: (row["k"], row["id"])):
            return False
    return True


def two_segments(folder: Path) -> QuickLake:
    """The two atomic siblings of D45 to D52: `0` and `1`, rows deleted in both."""
    lake = quick_lake.make(folder, 0)
    lake.load(batch(0), batch(1))
    lake.do(lake.delete("k = 2"))
    return lake


def wide_segment(folder: Path) -> QuickLake:
    """Segment 0.1 of four files with ten rows each, and its sibling 4."""
    lake = quick_lake.make(folder, 0)
    lake.load(*(batch(number) for number in range(5)))
    whole = {"segments": ["0", "1", "2", "3"]}
    lake.do(lake.compaction("Custom", custom=whole, targetFileSize=1))
    assert [len(each.files) for each in lake.live] == [4, 1]
    return lake


TWO = without(loads(range(2)), k_is(2))
WIDE = loads(range(5))
