"""Locks on a table's segments and intervals: one port, several stores.

Locks make operations efficient and fair. The safety of a commit does not depend on them, but on
put-if-absent and reconciliation. This package does not depend on Delta, jobs or Kubernetes.

    rules      the effect of each call on the entries of a table
    store      the `LockStore` that the engine uses
    codec      locks as etcd keys and values
    etcd       package: a store in etcd
"""
