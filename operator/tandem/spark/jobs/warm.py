"""One small run of every shape of job, for the class-data archive (`tools/spark_setup.py`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from tandem.jobs.formats import (
    IngestJob,
    InputFile,
    JobBin,
    JobSpec,
    JobTable,
    RewriteJob,
    StatementJob,
)
from tandem.spark.jobs import ingest, rewrite, statement
from tandem.spark.runtime.control import Control
from tandem.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SCHEMA = {
    "type": "struct",
    "fields": [
        {"name": "id", "type": "long", "nullable": True, "metadata": {}},
        {"name": "name", "type": "string", "nullable": True, "metadata": {}},
    ],
}


def exercise_jobs(spark: SparkSession, folder: Path) -> None:
    """Run a rewrite, a delete, an update and ingests of a few rows, so that the JVM loads what
    they need. `folder` is scratch space."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "a.parquet"
    pq.write_table(pa.table({"id": range(100), "name": [f"n{i}" for i in range(100)]}), path)
    (folder / "a.csv").write_text("id,name\n1,x\n")
    (folder / "a.json").write_text('{"id": 1, "name": "x"}\n')
    store = open_store(str(folder))
    input_ = InputFile(logged_path=path.name, size=path.stat().st_size, rows=100)
    table = JobTable(
        location=store.location,
        version=0,
        table_id="warm",
        schema_string=json.dumps(_SCHEMA),
        partition_columns=(),
        configuration={},
    )
    shapes: tuple[RewriteJob | StatementJob | IngestJob, ...] = (
        RewriteJob(inputs=(input_,), bins=(JobBin(inputs=(0,)),), target_file_size=1 << 20),
        StatementJob(where="`id` = 1", inputs=(input_,), target_file_size=1 << 20),
        StatementJob(
            where="`id` < 5 AND `name` IS NOT NULL",
            set={"id": "`id` + 1"},
            inputs=(input_,),
            target_file_size=1 << 20,
        ),
        *(
            IngestJob(
                source_format=form,
                source_location=f"{store.location}/a.{form.lower()}",
                source_options={"header": "true"} if form == "Csv" else {},
                target_file_size=1 << 20,
            )
            for form in ("Parquet", "Csv", "Json")
        ),
    )
    for attempt, job in enumerate(shapes, start=1):
        spec = JobSpec(
            operation_id="warm",
            attempt=attempt,
            table=table,
            data_prefix=f"warm-{attempt}",
            control_prefix=f"_tandem/operations/warm/attempts/{attempt}",
            job=job,
        )
        control = Control(spec, store)
        store.put(control.path("done.json"), b"{}")
        match job:
            case RewriteJob():
                rewrite.run(control, spark.sparkContext)
            case StatementJob():
                # By Spark: over Arrow there is little to load.
                statement.run(control, spark, local=False)
            case IngestJob():
                ingest.run(control, spark)
