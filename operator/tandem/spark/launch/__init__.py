"""Jobs on this machine: Spark's as processes, small ones and those of a pool in this process.

Does not read the result of a job: the engine does.

    local   jobs in `spark-submit` processes, small ones in this process without Spark
    pooled  jobs of a pool, in threads that share Spark
"""
