"""What the operator and the driver of a job pool exchange, and the rules that both follow.

A pool is a Spark application that does many jobs, and a ConfigMap of its name that says which.
Pure: no client, no clock, no Spark.

    formats  the pool's configuration, a job, and how it ended
    records  the keys of the ConfigMap, and the patches that change it
    rules    which jobs are pooled, and which pool takes one
    ledger   what the driver does: begin, withdraw, close, end
"""
