"""Jobs on this machine: Spark's as processes, small ones in this process.

Does not read the result of a job: the engine does.

    local      `spark-submit` processes
    in_process small jobs without Spark
"""
