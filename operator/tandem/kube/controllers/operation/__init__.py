"""The controller of an operation's resource, from its first event to its terminal status.

Does not decide what an operation does, and never commits: a session of `tandem.operations` does.

    controller         the life cycle of one resource
    session_loop       drives a session from the event loop
    preconditions      why it cannot start now
    instrumentation    metrics and events from effects
    reporting          what its status and events say
    status_writer      writes the status, seldom, and the terminal one reliably
    spark_jobs         jobs as SparkApplications
    ttl                removes finished resources
"""
