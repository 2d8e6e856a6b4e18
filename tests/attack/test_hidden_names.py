"""Columns of a table that have the names by which jobs know rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from support.jobs.quick_lake import make
from support.lake.rows import SCHEMA
from tandem.errors import InvalidSpec, Reason
from tandem.jobs.formats import MergeJob
from tandem.spark.jobs.spark_merge import CLAUSE
from tandem.spark.runtime.row_files import INPUT, POSITION
from tandem.spark.sources import options
from tandem.spec.status import OperationStatus, Phase


def _refused(status: OperationStatus, name: str) -> None:
    assert status.phase is Phase.FAILED
    assert status.conditions[0].reason == Reason.UNSUPPORTED_FEATURE, status
    assert f"column {name}" in status.conditions[0].message


@pytest.mark.parametrize("name", ["__tandem_input", "__Tandem_Position"])
def test_a_table_with_a_column_of_our_names_is_refused(tmp_path: Path, name: str) -> None:
    lake = make(tmp_path, 0, schema=SCHEMA.append(pa.field(name, pa.int64())))
    for operation in (lake.compaction(), lake.update("k = 1", v="v + 15"), lake.delete("k = 1")):
        _refused(lake.run(operation), name)
    assert lake.version == lake.first_version


@pytest.mark.parametrize(
    "name",
    [INPUT, POSITION, CLAUSE, "__tandem_here", "__TANDEM_source_1", "__tandem_part", "__tandem_z"],
)
def test_names_that_jobs_keep_for_themselves_are_refused_in_the_source_of_a_merge(
    name: str,
) -> None:
    job = MergeJob(
        source_format="Parquet", source_location="file:///s", on="t.id = s.id",
        clauses=(), inputs=(), target_file_size=1,
    )  # fmt: skip
    with pytest.raises(InvalidSpec, match=name):
        options.check_option_names(["id", name], job)
    options.check_option_names(["id", "tandem_here", "_tandem_z", "x__tandem_z"], job)
