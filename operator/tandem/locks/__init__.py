"""Locks on a table's segments and intervals: one port, several stores.

Locks make operations efficient and fair; they never make a commit safe (that is put-if-absent
plus reconciliation). Nothing here knows Delta, jobs or Kubernetes.

    model      what is asked for and what is held
    conflicts  the matrix, and the pure function that decides a request
    rules      pure: what each call does to a table's entries
    port       the `LockStore` that the engine sees
    memory     a store inside one process
"""
