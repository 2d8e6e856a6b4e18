"""Locks on a table's segments and intervals: one port, several stores.

Locks make operations efficient and fair; they never make a commit safe (that is put-if-absent
plus reconciliation). Nothing here knows Delta, jobs or Kubernetes.

    model      requests, entries and modes
    conflicts  the lock matrix
    rules      what each call does to the entries of a table
    port       the `LockStore` that the engine sees
    memory     a store inside one process
    codec      locks as etcd keys and values
    etcd       room: a store in etcd
"""
