"""Spark: the jobs, their sources, how they are started, and their `SparkApplication`s.

Jobs write files and a result; only the engine commits. The connector needs no engine.

    runtime      package: reading the job, writing the result, rows of a table as DataFrames
    sources      package: CSV, JSON, Parquet and Delta sources
    jobs         package: one module for each kind of job
    connector    package: `format("tandem")` for Spark sessions of users
    launch       package: jobs as local processes
    application  package: jobs as `SparkApplication`s; pure
"""
