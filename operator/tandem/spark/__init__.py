"""Spark: what a job is told, what it answers, and how it is started.

`job` holds the persisted formats that the engine and `spark_apps/` share; `runner` starts and
watches applications without a cluster. Nothing here commits to a table.
"""
