"""The Delta protocol: log, snapshot, deletion vectors, statistics, checkpoints, commits.

Speaks the Delta protocol and nothing of Tandem's operations. Data files are not read here
except by `tandem.delta.scan`.
"""
