"""Locks in etcd: for operators in a cluster, whose locks outlive a process.

`client` and `users` are the only modules that import aetcd and gRPC.

    store        the `LockStore`
    client       etcd's calls: keys, leases, watches
    leases       leases, granted and renewed
    mirror       a cached copy of a table's locks
    table        the locks of one table
    users        users and permissions in etcd
"""
