"""Small rounds: the rest of a statement that the engine evaluates without a job (decision 0099).

Evaluates only what is proven to mean the same as in Spark; everything else is left to the job.

    port         the port
    arrow        its implementation over Arrow
    edits        the edits that an attempt has made
    source_copy  a merge's source, as its job copied it
"""
