"""A table of the version before, with operations half-way, is taken over.

`version_before.tar.gz` is a table as commit df87a2a wrote it, before the modules moved and the
machine's state was grouped: formats that are read again and identities of operations must not
change with the code. Its location is `/LAKE`. Four foreign segments of ten rows, an ingest and an
update; then four operations whose processes died:

    op-4-3  TableCompaction, SemiMajor   before its commit is put
    op-4-4  TableUpdate, k = 1           before it reconciles
    op-4-5  TableUpdate, delete k = 2    before its job starts
    op-4-6  SegmentRewrite, segment 0    after its commit was put
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from support.jobs.quick_lake import QuickLake
from support.lake.lake import Process, batch
from support.lake.rows import k_is, plus, without
from tandem.spec.status import Phase
from tandem.storage import open_store

TABLE = Path(__file__).with_name("version_before.tar.gz")
COMMITTED = 7


@pytest.fixture
def lake(tmp_path: Path) -> QuickLake:
    with tarfile.open(TABLE) as tar:
        tar.extractall(tmp_path, filter="data")
    for file in tmp_path.rglob("*.json"):
        file.write_text(file.read_text().replace("/LAKE", str(tmp_path)))
    location = (tmp_path / "lake").as_uri()
    made = QuickLake(location, None, tmp_path / "sources", open_store(location))  # type: ignore[arg-type]
    made.first_version, made.count, made.backoff_limit = 4, 2, 3
    return made


def test_operations_of_the_version_before_are_taken_over_and_end_once(lake: QuickLake) -> None:
    rewrite = {"segments": [lake.names[0]], "rewrite": {"recompress": {"codec": "gzip"}}}
    operations = [
        lake.compaction("SemiMajor"),
        lake.update("k = 1", v="v + 15"),
        lake.delete("k = 2"),
        lake.resource("SegmentRewrite", rewrite),
    ]
    before = plus(tuple(row for n in range(5) for row in batch(n)), k_is(3), 1)
    assert lake.version == COMMITTED
    lake.assert_rows(before)
    ends = [
        lake.run(each, ports=lake.ports(processes=Process(2, {2})), again=False)
        for each in operations
    ]
    assert [end.phase for end in ends] == [Phase.SUCCEEDED] * 4, ends
    # The rewrite had committed; the others commit now, one of them in another attempt.
    assert lake.version == COMMITTED + 3
    assert ends[3].result is not None
    assert ends[3].result.version == COMMITTED
    # Of the attempts that were left, only that whose job had not started is given up.
    assert [end.attempt for end in ends] == [1, 1, 2, 1]
    lake.assert_rows(without(plus(before, k_is(1), 15), k_is(2)))
    lake.assert_clean()
