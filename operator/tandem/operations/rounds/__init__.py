"""Small rounds: rests that the engine evaluates by itself, without a job (decision 0099).

Evaluates only what is proven to mean the same as in Spark; everything else is the job's.

    port         the port
    arrow        its implementation over Arrow
    source_copy  a merge's source, as its job copied it
"""
