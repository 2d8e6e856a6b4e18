"""The controllers of operations, of tables and of index servers.

They do not decide what an operation does, what is compacted or what is deleted: `tandem.operations`
and `tandem.planning` do.

    operation         the life cycle of an operation's resource
    session_loop      drives a session from the event loop
    preconditions     why an operation cannot start now
    reporting         what its status, events, metrics and log lines say
    status_writer     writes statuses, seldom, and the terminal one reliably
    spark_jobs        jobs as SparkApplications
    ended             removes operations that have ended, and follows changes of their spec
    table             the life cycle of a LakeTable, and rounds of cleaning
    automation        automatic compaction, merges of the log, drops of old rows
    table_children    the operations that these create, and those deleted while no operator ran
    index_server      the life cycle of an IndexServer
    index_deployment  its SparkApplication and its Service in the cluster
    index_status      composes its status
"""
