"""Which kind of operation reaches which named point, and under which condition, as a table for
`tests/simulator/points.md`: `python -m simulator.points` says it.

At a point that no operation reaches, no crash test kills a process.
"""

from __future__ import annotations

import sys
from enum import StrEnum

from simulator.crashing import ALL_KINDS, Beside, passages, restart_passages
from tandem.operations.machine.events import Point

BEGIN, END = "<!-- points: simulator.points -->\n", "<!-- end of points -->\n"
DEATHS = ((Point.START_JOB, 1), (Point.READ_RESULT, 1), (Point.PUT_COMMIT, 1))
"""After which of its steps the predecessor of a restart died: it has left nothing that can be
used, all that is needed, or a commit."""


class When(StrEnum):
    """The condition under which an operation reaches a point. A restart may find its resource
    suspended."""

    ALWAYS = "always"
    RESTART = "restart"
    OTHERS = "others"
    NEVER = "–"


def when(kind: str, point: Point) -> When:
    """The simplest condition under which operations of a kind reach a point."""
    if point in {passed for passed, _ in passages(kind, Beside.NOTHING)}:
        return When.ALWAYS
    for death in DEATHS:
        for suspended in (False, True):
            restart = restart_passages(kind, death, jobs_live_on=False, suspended=suspended)
            if point in {passed for passed, _ in restart}:
                return When.RESTART
    for beside in Beside:
        if point in {passed for passed, _ in passages(kind, beside)}:
            return When.OTHERS
    return When.NEVER


def table() -> str:
    """In Markdown, a line for each point."""
    lines = [
        "| point | " + " | ".join(ALL_KINDS) + " |",
        "|---|" + "---|" * len(ALL_KINDS),
    ]
    for point in Point:
        cells = " | ".join(when(kind, point) for kind in ALL_KINDS)
        lines.append(f"| `{point}` | {cells} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.stdout.write(table())
