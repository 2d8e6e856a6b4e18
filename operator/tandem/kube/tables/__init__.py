"""A LakeTable in the operator: the opened table, its credentials, and its status.

Starts no operation, and writes nothing to the API server: the controllers do.

    context          opened tables, and their waiters
    table_log        the log of a merge-on-read table
    renewable_store  a store whose credentials rotate
    location_policy  which locations a namespace may use
    status           the status of a LakeTable
"""
