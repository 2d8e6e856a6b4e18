"""Locks in etcd: for operators in a cluster, whose locks outlive a process.

`connection`, `client` and `users` are the only modules that import aetcd and gRPC.

    store        the `LockStore`
    client       etcd's calls: keys, leases, watches
    connection   endpoints, TLS, tokens and repeats
    leases       leases, granted and renewed
    mirror       a cached copy of a table's locks
    transaction  what one transaction compares and writes
    table        the locks of one table
    watchers     requests that wait for them
    users        users and permissions in etcd
"""
