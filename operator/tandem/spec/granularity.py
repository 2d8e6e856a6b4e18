"""Lengths of time chunks, as resources name them."""

from __future__ import annotations

from enum import StrEnum


class Granularity(StrEnum):
    HOUR = "Hour"
    DAY = "Day"
    WEEK = "Week"
    MONTH = "Month"
    QUARTER = "Quarter"
    YEAR = "Year"
    ALL = "All"
