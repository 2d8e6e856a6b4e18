"""Names of columns in Spark SQL."""

from __future__ import annotations


def quoted_identifier(name: str) -> str:
    """A name in backquotes, whatever its characters."""
    return "`" + name.replace("`", "``") + "`"
