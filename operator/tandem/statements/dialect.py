"""The dialect in which statements are written and evaluated: Spark 4.2 SQL, ANSI mode.

Everything that determines the *meaning* of a text is pinned here: the settings of the session that
evaluates it, the limits on its size, and the words with a special meaning. Under other settings a
canonical text may have another result, so the session builder must use `SPARK_SESSION_CONF`
unchanged and let no user setting override it.
"""

from __future__ import annotations

from typing import Final

SPARK_SESSION_CONF: Final[dict[str, str]] = {
    # Division by zero, overflow and bad casts raise; string = int casts the string.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.storeAssignmentPolicy": "ANSI",
    # `date` and `user` are good column names; we quote every name anyway.
    "spark.sql.ansi.enforceReservedKeywords": "false",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.caseSensitive": "false",
    # Timestamps without a zone, dates of instants: one result wherever the job runs.
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
    "spark.sql.datetime.java8API.enabled": "false",
    "spark.sql.legacy.timeParserPolicy": "CORRECTED",
    # How literals are parsed; see generate.py.
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.legacy.consecutiveStringLiterals.enabled": "false",
    "spark.sql.legacy.exponentLiteralAsDecimal.enabled": "false",
    "spark.sql.legacy.literal.pickMinimumPrecision": "true",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.sql.parser.quotedRegexColumnNames": "false",
    # Otherwise `${env:HOME}` inside a string literal is replaced before parsing.
    "spark.sql.variable.substitute": "false",
    # Defence in depth: text.`/etc/passwd` is not a table.
    "spark.sql.runSQLOnFiles": "false",
}
"""Settings that every session that evaluates a statement must have unchanged."""

MAX_TEXT: Final = 16_384
"""Maximum characters of one expression."""
MAX_NODES: Final = 2_000
"""Maximum nodes of one tree."""
MAX_NESTING: Final = 60
"""Maximum levels of parentheses, calls and CASE; also bounds the recursion of the parser."""
MAX_DEPTH: Final = 100
"""Maximum levels of the tree: chains such as a + b + c count one level for each operator."""
MAX_IN_LIST: Final = 1_000
MAX_STRING: Final = 4_096
"""Maximum characters of one string literal, and bytes of one binary literal."""
MAX_IDENTIFIER: Final = 255
MAX_PATTERN: Final = 256
"""Maximum characters of a LIKE, ILIKE or RLIKE pattern."""
MAX_PATTERN_WILDCARDS: Final = 4
"""Maximum unbounded repetitions in one pattern: matching takes at most about length ** 4 steps."""
MAX_SET: Final = 500
"""Maximum columns that one update may set."""

_RESERVED = """
    ALL AND ANTI ANY AS ASC BETWEEN CASE CAST COLLATE CROSS DESC DISTINCT DIV ELSE END ESCAPE
    EXCEPT EXISTS FALSE FOR FROM FULL GROUP HAVING ILIKE IN INNER INTERSECT IS JOIN LATERAL LEFT
    LIKE LIMIT MINUS NATURAL NOT NULL OFFSET ON OR ORDER OUTER OVER QUALIFY REGEXP RIGHT RLIKE
    SELECT SEMI SOME TABLE THEN TRUE TRY_CAST UNION UNKNOWN UNPIVOT USING VALUES WHEN WHERE
    WINDOW WITH
"""
RESERVED: Final = frozenset(_RESERVED.split())
"""Words that are never a bare column name here; in backquotes they are."""

BARE_FUNCTIONS: Final = frozenset({"current_date", "current_timestamp", "localtimestamp"})
"""Functions that may be written without parentheses; a column of that name takes precedence."""
