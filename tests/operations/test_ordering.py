"""Columns to order rows by, as people type them and as a table has them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from tandem.delta.log import DeltaLog
from tandem.delta.snapshot import Snapshot
from tandem.errors import InvalidSpec
from tandem.operations.ordering import job_layout
from tandem.spark.job import JobLayout
from tandem.storage import open_store


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    location = (tmp_path_factory.mktemp("ordering") / "t").as_uri()
    schema = pa.schema(
        [
            ("Carrier", pa.string()),
            ("price", pa.decimal128(9, 2)),
            ("month", pa.int32()),
            ("place", pa.struct([("x", pa.float64())])),
            ("tags", pa.list_(pa.string())),
        ]
    )
    DeltaTable.create(location, schema, partition_by=["month"])
    return DeltaLog(open_store(location)).snapshot()


def layout(snapshot: Snapshot, *columns: str) -> JobLayout:
    return job_layout("Sort", columns, snapshot, resource="SegmentRewrite/s", field="spec.f")


def test_names_have_no_case_and_are_spelt_as_the_table_does(snapshot: Snapshot) -> None:
    assert layout(snapshot, "PRICE", "carrier").columns == ("price", "Carrier")


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (("carier",), "rows cannot be ordered by this"),
        (("place",), "rows cannot be ordered by this"),
        (("place.x",), "rows cannot be ordered by this"),
        (("tags",), "rows cannot be ordered by this"),
        (("price", "month"), "the same value of a partition's column"),
        (("price", "Price"), "named twice"),
    ],
)
def test_what_rows_cannot_be_ordered_by(
    snapshot: Snapshot, columns: tuple[str, ...], words: str
) -> None:
    with pytest.raises(InvalidSpec, match=words) as caught:
        layout(snapshot, *columns)
    assert (caught.value.resource, caught.value.field) == ("SegmentRewrite/s", "spec.f")
    assert caught.value.found == columns[-1]
