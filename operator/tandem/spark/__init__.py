"""Spark: the jobs, how they read sources, how they are started, and their `SparkApplication`s.

Jobs write files and a result; only the engine commits.

    runtime      room: reading the plan, writing the result, rows of a table as DataFrames
    sources      room: CSV, JSON, Parquet and Delta sources
    jobs         room: one module for each kind of job
    launch       room: jobs as local processes
    application  room: jobs as `SparkApplication`s; pure
"""
