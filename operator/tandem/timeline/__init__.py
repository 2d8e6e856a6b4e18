"""Segments of a table as a pure function of its log: names, order, lineage, time chunks.

No I/O and no clock: everything here works on Delta actions that somebody else has read.
"""
