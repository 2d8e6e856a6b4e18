"""What a compaction would do: pure functions from segments to runs and bins.

The same segments and the same request give the same plan. Nothing here reads a table or a
clock; nothing here takes a lock.
"""
