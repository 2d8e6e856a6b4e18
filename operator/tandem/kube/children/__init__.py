"""Child processes of the operator, one for each tenant, which do its small jobs.

Knows jobs and processes, but neither the API server nor the engine.

    jobs        the engine's `Jobs` in a cluster: a small one in a child, else a SparkApplication
    supervisor  begins children, ends them when idle, kills those that hang or take too much
    child       the child: its bounds, its environment, its jobs
    template    what children have imported before they are forked
    pipe        what the operator and a child say to each other, as JSON
    tenants     whose child it is, and what it may do with which credentials
"""
