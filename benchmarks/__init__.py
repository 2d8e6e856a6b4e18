"""Measurements against other engines, side by side in one run (`make bench`).

Ratios within one run mean something on any machine; absolute figures belong to the machine
that the report names. Every run checks its results against DuckDB before it counts.
"""
