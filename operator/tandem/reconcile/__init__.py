"""Reconciliation: merging a change set with everything committed since it was planned.

Pure: no I/O, no clock, no Kubernetes. The rules are tables in `rules`; `rewrite` and
`statement` apply them; `rowmap` says where rows went.
"""
