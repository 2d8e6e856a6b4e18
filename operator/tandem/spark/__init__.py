"""Spark: the jobs, their sources, how they are started, and their `SparkApplication`s.

Jobs write files and a result; only the engine commits. The connector and `read` need no engine.

    runtime      package: reading the job, writing the result, rows of a table as DataFrames
    sources      package: CSV, JSON, Parquet and Delta sources
    jobs         package: one module for each kind of job
    connector    package: `format("tandem")` for Spark sessions of users
    indexed      package: `read`, over the files that the index chooses
    launch       package: jobs as local processes
    application  package: jobs as `SparkApplication`s; pure
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tandem.spark.indexed import read
else:

    def __getattr__(name: str) -> object:
        # On demand: jobs import this package, and need no index.
        if name == "read":
            from tandem.spark.indexed import read

            return read
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = ["read"]
