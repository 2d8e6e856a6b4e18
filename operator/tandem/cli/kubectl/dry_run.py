"""The dry-run copy of an operation, and the operations that a plan would conflict with. Pure.

The copy is the same operation with another name and `spec.dryRun`: the operator plans it against
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
"""The operator deletes the copy after so long if this process could not."""
_WHOLE = "the whole table"
_INTERVAL = " to "
CUT = re.compile(r"… and (\d+) more")
"""The last element of a shortened list in a status."""
_MOST_NAME = 40


def plan_copy(kind: str, name: str, spec: Mapping[str, Any]) -> Json:
    """The copy to create for an operation of this kind, name and spec."""
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
    """The operations that hold segments of a plan, and the consequence: `waits`, `rows` (both run;
    rows that both change are reconciled at the commit) or, if the statuses do not name all
    segments and the named ones differ, `perhaps`.

    Args:
        locks: those of the table's status.
        itself: the operation of the plan, which does not wait for itself.
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
