"""The dry-run copy of an operation, and the operations that a plan would conflict with. Pure.

The copy is the same operation with another name and `spec.dryRun`: the operator plans it against
the table as it is, and neither locks nor writes anything.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from tandem.json_types import Json
from tandem.locks.conflicts import MATRIX, Compatibility
from tandem.spec.common import API_VERSION, OPERATIONS, Mode
from tandem.spec.labels import PLAN_LABEL
from tandem.spec.status import LOG_INSTANT, MERGES_LOG, WHOLE_LOG

TTL_S = 300
"""The operator deletes the copy after so long if this process could not."""
_WHOLE = "the whole table"
_INTERVAL = re.compile(r"(…|\d)\S*/(…|\d)\S*")
"""An interval among the segments of a lock: `2013-03-02T00:00:00Z/…`."""
CUT = re.compile(r"… and (\d+) more")
"""The last element of a shortened list in a status."""
_MOST_NAME = 40
_RUN = re.compile(r"(\d{1,18})-(\d{1,18})")


def plan_copy(kind: str, name: str, spec: Mapping[str, Any]) -> Json:
    """The copy to create for an operation of this kind, name and spec."""
    left = ("suspend", "priority", "dependsOn", "ttlSecondsAfterFinished")
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {
            "name": f"{name[:_MOST_NAME].rstrip('-.')}-plan-{secrets.token_hex(3)}",
            "labels": {PLAN_LABEL: "true"},
        },
        "spec": {
            **{key: value for key, value in spec.items() if key not in left},
            "dryRun": True,
            "ttlSecondsAfterFinished": TTL_S,
        },
    }


def expected(
    kind: str,
    plan: Mapping[str, Any],
    locks: Sequence[Mapping[str, Any]],
    itself: str = "",
    *,
    exclusive: bool = False,
) -> list[Json]:
    """The operations that hold segments of a plan, and the consequence: `waits`, `rows` (both run;
    rows that both change are reconciled at the commit) or, if the statuses do not name all
    segments and the named ones differ, `perhaps`.

    Args:
        locks: those of the table's status.
        itself: the operation of the plan, which does not wait for itself.
        exclusive: it locks its chunks exclusively; which these are is not in a status.
    """
    if OPERATIONS[kind].on_log:
        return _expected_of_log(kind, plan, locks, itself)
    wanted = set(map(str, plan.get("segments") or ()))
    if MERGES_LOG in (plan.get("locks") or ()):
        from tandem.mergelog.state.log_table import LOG_FOLDER  # a slow import

        wanted.add(LOG_FOLDER)
    named = {name for name in wanted if not CUT.fullmatch(name)}
    held = tuple(map(str, plan.get("locks") or ()))
    # A plan that locks intervals meets others within them, too.
    vague = exclusive or named != wanted or any(" interval " in lock for lock in held)
    whole = any(lock.endswith(" the table") for lock in held)
    mode = Mode.EXCLUSIVE if exclusive else OPERATIONS[kind].mode
    found = []
    for lock in locks:
        if lock.get("operation") == itself or lock.get("mode") not in set(Mode):
            continue
        beside = MATRIX[mode, Mode(lock["mode"])]
        theirs = set(map(str, lock.get("segments") or ()))
        if theirs and all(name == WHOLE_LOG or name.startswith(LOG_INSTANT) for name in theirs):
            continue  # a log has locks of its own
        common = theirs if whole else named if _WHOLE in theirs else named & theirs
        unnamed = vague or lock.get("more") or any(map(_INTERVAL.fullmatch, theirs))
        if beside is Compatibility.YES or not (named or vague or whole):
            continue
        if not (common or unnamed):
            continue
        means = "rows" if beside is Compatibility.ROWS else "waits"
        found.append(
            {
                "operation": lock["operation"],
                "means": means if common else "perhaps",
                "state": lock.get("state"),
                "since": lock.get("since"),
                "segments": sorted(common),
            }
        )
    return found


def _expected_of_log(
    kind: str, plan: Mapping[str, Any], locks: Sequence[Mapping[str, Any]], itself: str
) -> list[Json]:
    """`expected` for a log compaction: its plan names runs of instants (`3-7`), and a lock the
    first instant of each block."""
    runs = [
        range(int(run[1]), int(run[2]) + 1)
        for name in plan.get("instants") or ()
        if (run := _RUN.fullmatch(str(name)))
    ]
    cut = len(runs) < len(plan.get("instants") or ())
    found: list[Json] = []
    for lock in locks:
        if lock.get("operation") == itself or lock.get("mode") not in set(Mode):
            continue
        names = [str(name) for name in lock.get("segments") or ()]
        theirs = {name for name in names if name.startswith(LOG_INSTANT)}
        if MATRIX[OPERATIONS[kind].mode, Mode(lock["mode"])] is Compatibility.YES or not runs:
            continue
        common = {
            name
            for name in theirs
            if any(int(name.removeprefix(LOG_INSTANT)) in each for each in runs)
        }
        if common or (theirs and (cut or lock.get("more"))):
            found.append(
                {
                    "operation": lock["operation"],
                    "means": "waits" if common else "perhaps",
                    "state": lock.get("state"),
                    "since": lock.get("since"),
                    "segments": sorted(
                        common, key=lambda name: int(name.removeprefix(LOG_INSTANT))
                    ),
                }
            )
    return found
