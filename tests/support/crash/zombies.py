"""Processes on a real disk that stood still for so long that others took them for dead, and come
back: at every point, after all that others can do meanwhile. Shared by what `make test` tries in
`tests/crash` and what `make matrix` tries there. The simulator has the same in
`simulator.zombies`, by single steps and with drivers that live on.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from support.cases import APPENDS, COMMIT_TO_LOG, OTHERS, PLAIN
from support.crash.crash_table import FIRST, CrashTable, after_foreign, expected
from support.crash.killed import (
    COMMIT_LOOP,
    EDITED_BESIDE,
    ProcessStarters,
    around_edits,
    circumstances,
    cleaning,
)
from support.crash.processes import ProcessStarter, Strike
from support.lake.rows import Rows
from tandem.cli.commands.tables import clean
from tandem.cli.commands.target import target
from tandem.cli.output import Output
from tandem.operations.machine.events import Point

ROUNDS = ("update", "delete", "merge")
"""Kinds whose statements an append makes evaluate another round, as they are serializable."""
KINDS = (*PLAIN, *OTHERS, *APPENDS)
ENDS_WHEN_PLANNED_AGAIN = {
    "compaction": "NothingToDo",  # too few segments of like age are left
    "sort": "NothingToDo",
}
"""How an operation ends that is planned again after another writer has replaced half of the files;
others commit. (A segment rewrite writes what is left of the segments that it once found.)"""
ELSEWHERE = ("Abandoned", "AlreadyRunning")
"""Why a process ends whose operation others do, or have done."""


class Takeover(StrEnum):
    """What the others do before the first one comes back."""

    REPLACED = "replaced"
    CLEANED = "cleaned"
    CLEANED_REPLACED = "cleaned, then replaced"
    REPLACED_CLEANED = "replaced, then cleaned"

    @property
    def starts_again(self) -> bool:
        """Whether what the first one did is thrown away."""
        return self in (Takeover.CLEANED, Takeover.CLEANED_REPLACED)

    @property
    def replaces(self) -> bool:
        return self is not Takeover.CLEANED


@dataclass(frozen=True)
class Stop:
    """Where a process stands still, and what makes it reach that point: `first` kills its
    predecessor, `more` is for its order."""

    strike: Strike
    first: Strike | None = None
    more: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.strike}{'-' if self.more else ''}{self.more.get('meanwhile', '')}"

    @property
    def between(self) -> str:
        """What another writer commits meanwhile."""
        return str(self.more.get("meanwhile", ""))


def at(point: str, *, after: bool = False, nth: int = 1, **more: Any) -> Stop:
    """To stand still at the n-th passage of a place, alone or with `more` in its order."""
    return Stop(Strike(point, after, nth, int(signal.SIGSTOP)), more.pop("first", None), more)


FEW = (
    at(Point.PERSIST_PLAN),
    at(Point.START_JOB),
    at("job:written"),
    at("job:published"),
    at(Point.READ_RESULT),
    at(Point.WRITE_SIDECARS),
    at(Point.PUT_COMMIT),
    at(Point.PUT_COMMIT, after=True),
    at(Point.CLEAN_UNUSED),
)
"""Where it matters most."""


def stops(kind: str) -> Iterator[Stop]:
    """Both sides of every point that operations of a kind reach, the places of their jobs, and
    the commit loop after another writer's commit."""
    for point in Point:
        if point is Point.REQUEST_ROUND and kind not in ROUNDS:
            continue
        for after in (False, True):
            yield at(point, after=after, **circumstances(point))
    for place in ("job:written", "job:published"):
        yield at(place)
    if kind in COMMIT_TO_LOG:  # a lost put is put again at once, in the same effect
        for point in COMMIT_LOOP[1:]:
            yield at(point, meanwhile="update")
    else:
        for point in COMMIT_LOOP:
            yield at(point, nth=2, meanwhile="update")
    if kind in ROUNDS:
        for place in (Point.READ_RESULT, "job:written", "job:published"):
            yield at(place, nth=2, meanwhile="append")
    if kind == "merge":  # is executed again after its round on a part
        for place in (Point.READ_RESULT, "job:written", "job:published"):
            yield at(place, nth=3, meanwhile="append")


def stops_around_edits(kind: str) -> Iterator[Stop]:
    """On a table without deletion vectors, to which another writer comes."""
    beside = [meanwhile for editor, meanwhile in EDITED_BESIDE if editor == kind]
    for number, (place, nth) in enumerate(around_edits(kind)):
        for after in (False, True):
            meanwhile = beside[(number + after) % len(beside)]
            yield at(place, after=after, nth=nth, meanwhile=meanwhile)


def resumes(
    starters: ProcessStarters, table: CrashTable, kind: str, stop: Stop, takeover: Takeover
) -> bool:
    """A process of another host is silent; others take it for dead. Then it goes on where it
    stood: the operation happens once, and in the end no process leaves files behind. Whether it
    came to its stop: else it has ended before."""
    first, second = starters
    if stop.first is not None:
        assert second.run(table.order(kind, strike=stop.first)).killed
    first.start(table.order(kind, strike=stop.strike, answer="first", **stop.more))
    if not first.stops():
        assert first.end().phase == "Succeeded"
        return False
    begun = after_foreign(stop.between, FIRST)
    seen = {FIRST, begun, expected(kind, begun)}
    reason = "Committed"
    if stop.between == "update" and takeover.starts_again and not table.successes():
        reason = ENDS_WHEN_PLANNED_AGAIN.get(kind, reason)
    final = expected(kind, begun) if reason == "Committed" else begun
    table.move_claims_to_another_host()
    if takeover.starts_again:
        clean_as_if_dead(second, table)
        assert table.shown() in seen
    result = None
    if takeover.replaces:
        result = _ended_by(second, table, kind, reason, final)
    if takeover is Takeover.REPLACED_CLEANED:
        clean_as_if_dead(second, table)
        assert table.unreachable() == set()
    version = table.version

    first.go_on()
    late = first.end()
    assert late.signal == 0
    # Either it learns that it was declared dead, or how the operation has ended.
    allowed = (*ELSEWHERE, "Suspended") if stop.more.get("suspended") else ELSEWHERE
    if late.condition["reason"] not in allowed:
        assert late.condition["reason"] == reason, late
        assert result in (None, late.status.get("result"))
    if takeover.replaces:
        assert table.version == version
    assert table.shown() in ({final} if takeover.replaces else seen)
    if takeover is Takeover.REPLACED:  # a cleaning leaves nothing of the versions before
        assert set(table.history()) <= seen
        # All that the log names is still there, whatever the zombie tidied up.
        assert table.named() - {""} <= table.files().keys()
        # What it wrote after the takeover belongs to a dead attempt's.
        assert stop.first is not None or all("-1" in path for path in table.unreachable())
    # Another run reports the same ending; `tandem clean` removes what zombies wrote.
    again = _ended_by(second, table, kind, reason, final)
    assert result in (None, again)
    clean.function(target(str(table.path)), output=Output.JSON, dry_run=False)
    assert table.unreachable() == set()
    assert table.shown() == final
    table.assert_as_allowed()
    return True


def _ended_by(
    starter: ProcessStarter, table: CrashTable, kind: str, reason: str, final: Rows
) -> dict[str, Any] | None:
    """Run it to its end, which must be the expected one; its result, None without a commit."""
    end = starter.run(table.order(kind))
    assert end.condition["reason"] == reason, end.condition
    committed = reason == "Committed"
    assert (table.shown(), table.successes()) == (final, int(committed))
    return end.status["result"] if committed else None


def clean_as_if_dead(starter: ProcessStarter, table: CrashTable) -> None:
    """A cleaning for which everything is old, and every process of other hosts dead."""
    assert starter.run(cleaning(table)).phase == "Succeeded"
