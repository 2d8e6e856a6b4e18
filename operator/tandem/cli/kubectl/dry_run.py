"""The dry-run twin of an operation, and what a plan would meet. Pure.

A twin is the same operation with another name and `spec.dryRun`: the operator plans it against
the table as it is, and neither locks nor writes anything.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from tandem.kube.client.json_depth import Json
from tandem.kube.client.kinds import PLAN
from tandem.locks.conflicts import MATRIX, Compatibility
from tandem.spec.common import API_VERSION, OPERATIONS, Mode

TTL_S = 300
"""Should we not come to delete it, the operator does."""
_WHOLE = "the whole table"
_INTERVAL = " to "
CUT = re.compile(r"… and (\d+) more")
"""What stands at the end of a list in a status for what was left out."""
_MOST_NAME = 40


def plan_copy(kind: str, name: str, spec: Mapping[str, Any]) -> Json:
    """Of an operation of this kind, name and spec: what to create."""
    left = ("suspend", "priority", "dependsOn", "ttlSecondsAfterFinished")
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {
            "name": f"{name[:_MOST_NAME].rstrip('-.')}-plan-{secrets.token_hex(3)}",
            "labels": {PLAN: "true"},
        },
        "spec": {
            **{key: value for key, value in spec.items() if key not in left},
            "dryRun": True,
            "ttlSecondsAfterFinished": TTL_S,
        },
    }


def expected(
    kind: str, plan: Mapping[str, Any], locks: Sequence[Mapping[str, Any]], itself: str = ""
) -> list[Json]:
    """Who is there already on the segments of a plan, and what that would mean: `waits`, `rows`
    (both go on; the rows that both change decide at the commit) or, where statuses do not name
    all segments and those that they name differ, `perhaps`.

    Args:
        locks: of the table's status.
        itself: the operation whose plan it is: it does not wait for itself.
    """
    wanted = set(map(str, plan.get("segments") or ()))
    named = {name for name in wanted if not CUT.fullmatch(name)}
    found = []
    for lock in locks:
        if lock.get("operation") == itself or lock.get("mode") not in set(Mode):
            continue
        beside = MATRIX[OPERATIONS[kind].mode, Mode(lock["mode"])]
        theirs = set(map(str, lock.get("segments") or ()))
        common = named if _WHOLE in theirs else named & theirs
        unnamed = named != wanted or lock.get("more") or any(_INTERVAL in name for name in theirs)
        if beside is Compatibility.YES or not named or not (common or unnamed):
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
