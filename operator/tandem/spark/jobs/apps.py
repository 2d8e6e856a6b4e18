"""The applications: what each kind of job does on Spark, and the main function of
`spark_apps/`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem.spark.runtime import control as driver
from tandem.spark.runtime import session
from tandem.spark.runtime.control import Control

if TYPE_CHECKING:
    import threading

    from pyspark import SparkContext
    from pyspark.sql import SparkSession


def run(control: Control, context: SparkContext, stop: threading.Event | None = None) -> None:
    """Do a job. `stop` ends a job that serves rounds. Raises: TandemError, and what Spark raises.

    Each is imported for its own jobs only. A context is enough for those that need no session,
    which takes longer to start.
    """
    match control.spec.job.app:
        case "rewrite":
            from tandem.spark.jobs.rewrite import job

            job.run(control, context, stop=stop)
        case "stitch":
            from tandem.spark.jobs import stitch

            stitch.run(control, context)
        case "log_merge":
            from tandem.spark.jobs import log_merge

            log_merge.run(control, context)
        case "statement":
            from tandem.spark.jobs import statement

            statement.run(control, _session(context), stop)
        case "merge":
            from tandem.spark.jobs import merge

            merge.run(control, _session(context), stop)
        case "ingest":
            from tandem.spark.jobs import ingest

            ingest.run(control, _session(context), stop)
        case "upsert":
            from tandem.spark.jobs import upsert

            upsert.run(control, _session(context))
        case other:
            raise ValueError(f"no application {other}")


def _session(context: SparkContext) -> SparkSession:
    return session.session(context.appName or "tandem")


def main() -> int:
    """Do the job that a submitted application was started for."""
    return driver.main(_submitted)


def _submitted(control: Control) -> None:
    spec = control.spec
    app = spec.job.app.replace("_", "-")
    context = session.context(f"tandem-{app}-{spec.operation_id}-{spec.attempt}")
    try:
        run(control, context)
    finally:
        context.stop()
