"""A LakeTable in the operator: the opened table, its credentials, and its status.

Starts no operation, and writes nothing to the API server: the controllers do.

    context          opened tables, with credentials that rotate and their logs, and their waiters
    location_policy  which locations a namespace may use
    status           the status of a LakeTable, and what metrics and index servers need of it
"""
