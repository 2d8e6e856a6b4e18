"""The applications: what does each kind of job, on Spark and without; the main function of
`spark_apps/`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tandem.spark.runtime import control as driver
from tandem.spark.runtime import session
from tandem.spark.runtime.control import Control

if TYPE_CHECKING:
    import threading
    from contextlib import AbstractContextManager

    from pyspark import SparkContext
    from pyspark.sql import SparkSession


def run(control: Control, context: SparkContext, stop: threading.Event | None = None) -> None:
    """Do a job. `stop` ends a job that serves rounds. Raises: TandemError, and what Spark raises.

    Each is imported for its own jobs only. A context is enough for those that need no session,
    which takes longer to start.
    """
    match control.spec.job.app:
        case "rewrite":
            from tandem.spark.jobs import rewrite

            rewrite.run(control, context, stop=stop)
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


def run_here(control: Control, ended: threading.Event, turn: AbstractContextManager[None]) -> bool:
    """Do a job in this thread; False if it, or a round of it, needs Spark.

    Args:
        ended: ends a job that serves rounds.
        turn: entered for what the job computes, not while it waits for a round.
    Raises: TandemError.
    """
    match control.spec.job.app:
        case "statement":
            from tandem.spark.jobs import statement

            return statement.run_here(control, ended, turn)
        case "merge":
            from tandem.spark.jobs import merge

            return merge.run_here(control, ended, turn)
    with turn:
        return _in_one_turn(control)


def _in_one_turn(control: Control) -> bool:
    match control.spec.job.app:
        case "rewrite":
            from tandem.spark.jobs import rewrite

            return rewrite.run_here(control)
        case "ingest":
            from tandem.spark.jobs import ingest

            return ingest.run_here(control)
        case "upsert":
            from tandem.spark.jobs import upsert

            return upsert.run_here(control)
        case "stitch":
            from tandem.spark.jobs import stitch

            stitch.run(control, None)
        case "log_merge":
            from tandem.spark.jobs import log_merge

            log_merge.run(control, None)
    return True


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
