"""Spark: the jobs, their sources, how they are started, and their `SparkApplication`s.

Jobs write files and a result; only the engine commits. The connector and `read` need no engine.

    runtime      package: reading the job, writing the result, rows of a table as DataFrames
    sources      package: CSV, JSON, Parquet and Delta sources
    jobs         package: one module for each kind of job
    connector    package: `format("tandem")` for Spark sessions of users
    indexed      package: `read`, over the files that the index chooses
    launch       package: jobs as local processes
    application  package: jobs as `SparkApplication`s; pure

Users read in one of three ways: `format("tandem")`, a merge-on-read table with its log, in any
session; `read`, the rows that match a condition, of the files that the index chooses; and what
reads Delta, a table without a log. The data sources of jobs are not for users, and their names
begin with `tandem-`: rows of data files (`runtime.datasource`), texts of a source (`sources`), rows
of chosen files (`indexed.task_reads`).
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
