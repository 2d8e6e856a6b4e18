"""The controller of an IndexServer.

It answers no question about a table, and nothing waits for it: a server that is away costs time,
never an operation.

    controller   the life cycle of one resource
    deployment   its SparkApplication and its Service in the cluster
    serving      whether the application answers
    status       composes its status
"""
