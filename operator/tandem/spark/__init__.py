"""Spark: the jobs, their sources, how they are started, and their `SparkApplication`s.

Jobs write files and a result; only the engine commits. The connector and `read` need no engine.

    runtime            package: reading the job, writing the result, rows of a table as DataFrames
    sources            package: CSV, JSON, Parquet and Delta sources
    jobs               package: one module for each kind of job
    connector          `format("tandem")` for Spark sessions of users, and `register`
    connector_options  the options of its reads and writes
    indexed            `read`: whether a session means by a condition what we mean, and Delta's scan
                       over the files that the index chooses
    indexed_tasks      the same where each task asks for its own files, and reads them
    in_process         jobs in this process: small ones without Spark
    local_spark        Spark on this machine: one JVM, or a `spark-submit` process for each job
    application        package: jobs as `SparkApplication`s; pure

Users read in one of three ways: `format("tandem")`, a merge-on-read table with its log, in any
session; `read`, the rows that match a condition, of the files that the index chooses; and what
reads Delta, a table without a log. The data sources of jobs are not for users, and their names
begin with `tandem-`: rows of data files (`runtime.datasource`), texts of a source (`sources`), rows
of chosen files (`spark.indexed_tasks`).
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
