"""Processes that do small jobs, one for each tenant, and what the operator says to them.

pipe        calls between the operator and a child, as JSON
child       the child: its bounds, its environment, its jobs
tenants     whose child it is, and what it may do with which credentials
supervisor  begins children, ends them when idle, and kills those that hang or take too much
jobs        the engine's `Jobs` in a cluster: a small one in a child, else a SparkApplication
"""
