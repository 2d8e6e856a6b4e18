"""A table that was dropped and recreated at the same location, where `_tandem` was left behind."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from support.jobs.quick_lake import QuickLake, make
from support.lake import rows as model
from support.lake.faults import Fault, ProcessDied, StrikeOnce
from support.lake.lake import DELETION_VECTORS, batch, loads
from tandem.operations.machine.events import Point
from tandem.operations.ports import LocalClaims
from tandem.spec.resources import Operation
from tandem.spec.status import Phase


def _made_again(lake: QuickLake, appends: int) -> None:
    shutil.rmtree(lake.path / "_delta_log")
    for path in lake.path.glob("*.parquet"):
        path.unlink()
    DeltaTable.create(lake.location, model.SCHEMA, configuration=dict(DELETION_VECTORS))
    for number in range(appends):
        lake.append(batch(number))


def test_an_operation_of_the_old_table_runs_again_on_the_new_one(tmp_path: Path) -> None:
    lake = make(tmp_path, 4)
    ingest, compaction = lake.ingest(batch(4)), lake.compaction()
    first = [lake.do(ingest), lake.do(compaction)]
    _made_again(lake, 4)
    second = [lake.do(ingest), lake.do(compaction)]
    assert [s.operation_id for s in first] != [s.operation_id for s in second]
    lake.assert_rows(loads(range(5)))
    assert lake.version == 6
    # From then on it is what it is everywhere: a result is reported, not made twice.
    assert [lake.do(ingest).operation_id, lake.do(compaction).operation_id] == [
        s.operation_id for s in second
    ]
    assert lake.version == 6


@pytest.mark.parametrize("point", [Point.START_JOB, Point.PUT_COMMIT])
def test_an_attempt_that_ran_in_the_old_table_is_left_alone(tmp_path: Path, point: Point) -> None:
    lake = make(tmp_path, 4)

    def begun(operation: Operation) -> None:
        with pytest.raises(ProcessDied):
            lake.run(
                operation,
                interceptor=StrikeOnce(point, Fault.DIE_BEFORE),
                ports=lake.ports(local_claims=LocalClaims()),
            )

    ingest = lake.ingest(batch(4))
    begun(ingest)
    _made_again(lake, 2)
    assert lake.do(ingest).phase is Phase.SUCCEEDED
    lake.assert_rows(model.join(loads(range(2)), batch(4)))


def test_a_table_with_a_changed_id_keeps_the_identity_of_its_log(tmp_path: Path) -> None:
    lake = make(tmp_path, 2)
    ingest = lake.ingest(batch(2))
    done = lake.do(ingest)
    metadata = lake.log.snapshot().metadata
    lake.log_raw(
        {
            "metaData": {
                "id": "another",
                "format": {"provider": "parquet", "options": {}},
                "schemaString": metadata.schema_string,
                "partitionColumns": [],
                "configuration": dict(metadata.configuration),
            }
        }
    )
    assert lake.do(ingest).operation_id == done.operation_id
    lake.assert_rows(loads(range(3)))
