"""Reads of Delta tables for Spark sessions of users, over the files that the index chooses.

Data pages are read by Delta's own scan, and executors need nothing of this package, unless a caller
chooses `in_tasks`.

    reading     `read`: whether a session means by a condition what we mean, and Delta's scan over
                chosen files
    task_reads  each task asks for its own files, and reads them
"""

from tandem.spark.indexed.reading import read

__all__ = ["read"]
