"""Measurements against other engines, side by side in one run (`make bench`).

Ratios within one run hold on any machine; absolute figures hold for the machine that the report
names. Every run checks its results against DuckDB before it counts.
"""
