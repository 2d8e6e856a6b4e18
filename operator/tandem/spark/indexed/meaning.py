"""Whether a session means by a condition what we mean.

Jobs pin settings in sessions of their own (`tandem.spark.runtime.session`). A user's session is not
ours to change: a setting that would change which rows match is refused by its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tandem.errors import InvalidSpec
from tandem.spark.runtime.session import session_conf
from tandem.statements import to_spark_sql
from tandem.statements.tree import Call, Cast, Expr, walk

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_ZONE: Final = "spark.sql.session.timeZone"
_SUBSTITUTE: Final = "spark.sql.variable.substitute"
_OF_OTHER_THINGS: Final = ("spark.sql.storeAssignmentPolicy", "spark.sql.runSQLOnFiles")
"""Of writes, and of names of tables."""


def require_meaning(session: SparkSession, where: Expr) -> None:
    """Raises: InvalidSpec that names the setting, its value and the required one."""
    for key, expected in session_conf().items():
        if key in _OF_OTHER_THINGS or (key == _ZONE and not uses_time_zone(where)):
            continue
        # Generated text has no other `$` than in names.
        if key == _SUBSTITUTE and "${" not in to_spark_sql(where):
            continue
        found = session.conf.get(key, None)
        if found != expected:
            raise InvalidSpec(
                "the session has a setting that changes which rows match",
                resource="where",
                field=key,
                found=found,
                expected=expected,
                remedy=f'Run session.conf.set("{key}", "{expected}"), or read in a '
                "session.newSession() that has it",
            )


def uses_time_zone(where: Expr) -> bool:
    """Whether the session's time zone may matter: to a function, to a cast from or to a timestamp,
    or where a timestamp meets another type. Literals have a zone of their own."""
    for node in walk(where):
        types = {child.type.name for child in node.children()}
        if isinstance(node, Call):
            return True
        if isinstance(node, Cast):
            types.add(node.type.name)
        if "timestamp" in types and len(types - {"null"}) > 1:
            return True
    return False
