"""Reads of Delta tables for Spark sessions of users, over the files that the index chooses.

Data pages are read by Delta's own scan, never here. Executors need nothing of this package.

    reading     `read`
    delta_scan  Delta's scan over chosen files: the only module that knows Delta's classes
    meaning     whether a session means by a condition what we mean
"""

from tandem.spark.indexed.reading import read

__all__ = ["read"]
