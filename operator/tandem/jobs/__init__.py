"""What engine and jobs exchange: persisted formats, and the port that starts jobs.

Knows neither Spark nor Kubernetes. Older versions' files are read by these models, so fields are
added and never change their meaning.

    formats    what a job reads
    results    what it writes: result, failure, progress
    port       `Jobs`: the engine has the work of an attempt done
    runner     `JobRunner`: start, watch and stop processes of jobs
"""
