"""The controller of an IndexServer.

It answers no question about a table, and nothing waits for it: a server that is away costs time,
never an operation.

    controller   the life cycle of one resource
    deployment   its SparkApplication and its Service in the cluster
    secrets      its Secrets
    selection    which tables it serves, and why others are not
    application  what these are made of
    serving      whether the application answers
    asking       what a server says of its cache
    status       composes its status
"""
