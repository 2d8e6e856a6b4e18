"""Tables with collations: rows keep their texts, and a column with a collation is refused where an
expression, a layout or a key names it. Real jobs, without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from support.jobs import quick_lake
from support.jobs.quick_lake import ArrowLake
from support.lake.lake import DELETION_VECTORS, INSERT_ALL, message, reason
from tandem.delta.actions import DomainMetadata, Protocol
from tandem.delta.log.codec import encode_action
from tandem.delta.scan import scan
from tandem.delta.schema import COLLATIONS

TEXTS = ("a", "A", "ß", "", None)
Rows = dict[int, tuple[str | None, int]]


@pytest.fixture(params=["vectors", "edits"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> ArrowLake:
    """`name` has a collation, for which all of TEXTS but NULL might be two values."""
    path = tmp_path / "t"
    vectors = DELETION_VECTORS if request.param == "vectors" else {}
    for start in (0, 5):
        write_deltalake(path, source(start), mode="append", configuration=vectors)
    lake = quick_lake.of_kind(ArrowLake, path.as_uri(), tmp_path / "sources")
    snapshot = lake.log.snapshot()
    old, schema = snapshot.protocol, json.loads(snapshot.metadata.schema_string)
    schema["fields"][1]["metadata"] = {COLLATIONS: {"name": "spark.UTF8_LCASE"}}
    metadata = encode_action(snapshot.metadata)
    metadata["metaData"]["schemaString"] = json.dumps(schema)
    features = {"collations", "domainMetadata", *old.writer_features}
    protocol = Protocol(max(old.min_reader, 1), 7, old.reader_features, frozenset(features))
    versions = DomainMetadata("collations", '{"writeVersions":{}}', removed=False)
    lake.log_raw(encode_action(protocol), metadata, encode_action(versions))
    lake.first_version = lake.version
    return lake


def source(start: int) -> pa.Table:
    ids = pa.array(range(start, start + 5), pa.int64())
    return pa.table({"id": ids, "name": TEXTS, "v": ids})


def of_source(lake: ArrowLake, start: int) -> Path:
    lake.sources.mkdir(exist_ok=True)
    pq.write_table(source(start), lake.sources / f"{start}.parquet")
    return lake.sources / f"{start}.parquet"


def by_tandem(lake: ArrowLake) -> Rows:
    found = pa.concat_tables(map(pa.table, scan(lake.log.snapshot(), lake.store))).to_pylist()
    assert len({row["id"] for row in found}) == len(found)
    return {row["id"]: (row["name"], row["v"]) for row in found}


def test_operations_that_do_not_name_the_column(lake: ArrowLake) -> None:
    expected: Rows = {n: (TEXTS[n % 5], n) for n in range(10)}
    assert by_tandem(lake) == expected
    lake.do(lake.compaction("Major"))
    assert by_tandem(lake) == expected
    lake.do(lake.update("id < 3", v="v + 100"))
    expected |= {n: (TEXTS[n], n + 100) for n in range(3)}
    lake.do(lake.delete("v = 4 OR name IS NULL AND id = 9"))
    del expected[4], expected[9]
    assert by_tandem(lake) == expected
    lake.do(lake.update("id = 7", name="concat('B', id)"))
    expected[7] = ("B7", 7)
    body = {"source": {"format": "Parquet", "location": of_source(lake, 10).as_uri()}}
    lake.do(lake.resource("TableIngest", body))
    lake.do(lake.merge(of_source(lake, 12), **INSERT_ALL))
    lake.do(lake.merge(of_source(lake, 5), whenMatched=[{"update": {"set": {"name": "s.name"}}}]))
    expected |= {n: (TEXTS[n % 5], n) for n in range(10, 15)}
    expected |= {n: (TEXTS[(n - 12) % 5], n) for n in range(15, 17)}
    expected[7] = (TEXTS[2], 7)
    assert by_tandem(lake) == expected
    domains = lake.log.snapshot().domains
    assert domains["collations"].configuration == '{"writeVersions":{}}'
    lake.assert_clean()


REFUSED: dict[str, Any] = {
    "condition": lambda lake: lake.delete("name = 'a'"),
    "value": lambda lake: lake.update("id = 1", v="length(name)"),
    "key of a merge": lambda lake: lake.merge(of_source(lake, 0), on="t.name = s.name"),
    "sort": lambda lake: lake.compaction("Major", layout={"strategy": "Sort", "columns": ["name"]}),
    "z-order": lambda lake: lake.compaction(
        "Major", layout={"strategy": "ZOrder", "columns": ["id", "name"]}
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_names_the_column_is_refused(lake: ArrowLake, what: str) -> None:
    before = by_tandem(lake)
    status = lake.run(REFUSED[what](lake))
    assert reason(status) in ("InvalidStatement", "InvalidSpec"), status
    assert "collation" in message(status)
    assert by_tandem(lake) == before
