"""Jobs on this machine: Spark's as processes, small ones in this process.

Does not read the result of a job: the engine does.

    in_process   jobs in this process: small ones without Spark
    local_spark  Spark for the others: one JVM
    local        jobs in `spark-submit` processes
"""
