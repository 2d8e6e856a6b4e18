"""The part of a commit that another writer forces to repeat: from the read of the last version to
the put's response.

A compaction of 64 segments has done its work; meanwhile, 100,000 of its rows were deleted, in all
segments. The deletes are replayed in an earlier round, whose put is lost to a rival on purpose. The
last round is measured. The rival either appends a row, or deletes one more row of an input: then
the masks, and the file that holds them, are written again.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

from benchmarks.harness import Figure, Report, Samples, Table, WrongResult, in_child, progress

SEGMENTS = 64
ROWS = {"toy": 200, "small": 4_000, "full": 40_000}
DELETES = {"toy": 640, "small": 12_800, "full": 100_000}
TIMES = {"toy": 1, "small": 3, "full": 9}
AIM_MS = 15

RIVALS = {"append": "appends a row", "delete": "deletes one more row of an input"}

ALL = "all, to the put's response"
WAITED = "of it waiting for syncs to disk"
CPU = "of it CPU time"
CHECKED = "after it: reading the commit back"
COUNTS = ("calls of the store", "objects written", "syncs to disk", "KB of the commit")


class Noting:
    """A store that records its calls: (method, path, bytes written, ended, CPU seconds then)."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self.calls: list[tuple[str, str, int, float, float]] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if not callable(found):
            return found

        def noted(*arguments: Any, **named: Any) -> Any:
            answer = found(*arguments, **named)
            path = arguments[0] if arguments and isinstance(arguments[0], str) else ""
            size = len(arguments[1]) if name.startswith("put") else 0
            self.calls.append((name, path, size, time.perf_counter(), time.process_time()))
            return answer

        return noted


@dataclass
class Watch:
    """Records when each effect began and ended, and the CPU seconds when it began; lets a rival
    act before the first put."""

    rival: Callable[[], None]
    store: Noting
    spans: list[tuple[Any, float, float, float]] = field(default_factory=list)
    syncs: list[tuple[float, float]] = field(default_factory=list)
    lost: bool = False

    def __call__(self, effect: Any, call: Callable[[], Any]) -> Any:
        from tandem.operations.machine.events import Point

        if effect.point is Point.PUT_COMMIT and not self.lost:
            self.lost = True
            self.rival()
        began, worked = time.perf_counter(), time.process_time()
        event = call()
        self.spans.append((effect.point, began, time.perf_counter(), worked))
        return event

    def sync(self, fd: int, really: Callable[[int], None] = os.fsync) -> None:
        """In place of `os.fsync`."""
        began = time.perf_counter()
        really(fd)
        self.syncs.append((began, time.perf_counter()))

    def last_round(self) -> dict[str, float]:
        """Milliseconds by effect, from the last read of the table to the put's response, and the
        calls in that time."""
        from tandem.operations.machine.events import Point

        points = [point for point, *_ in self.spans]
        last = len(points) - 1 - points[::-1].index(Point.PUT_COMMIT)
        first = last - points[last::-1].index(Point.READ_TABLE)
        (_, begun, _, worked), ended = self.spans[first], self.spans[last][2]
        put = [c for c in self.store.calls if c[0] == "put_if_absent" and "_delta_log/" in c[1]]
        _, _, size, answered, worked_then = put[-1]
        if not begun < answered < ended:
            raise WrongResult("the last put was not in the last round")
        times = {
            str(point): (min(end, answered) - begin) * 1000
            for point, begin, end, _ in self.spans[first : last + 1]
        }
        calls = [name for name, _, _, end, _ in self.store.calls if begun <= end <= answered]
        syncs = [end - begin for begin, end in self.syncs if begun <= begin and end <= answered]
        return {
            **times,
            ALL: (answered - begun) * 1000,
            WAITED: sum(syncs) * 1000,
            CPU: (worked_then - worked) * 1000,
            CHECKED: (ended - answered) * 1000,
            COUNTS[0]: len(calls),
            COUNTS[1]: sum(name.startswith("put") for name in calls),
            COUNTS[2]: len(syncs),
            COUNTS[3]: size / 1000,
        }


def once(folder: str, rival: str, rows: int, deletes: int) -> dict[str, float]:
    """In a separate process: one compaction that meets all of these commits."""
    from support.jobs import quick_lake
    from support.lake.rows import rows as model
    from tandem.operations.machine.events import Point
    from tandem.spec.status import Phase

    lake = quick_lake.make(Path(folder), 0)
    for number in range(SEGMENTS):
        lake.append(model(range(number * rows, (number + 1) * rows)))
    each = deletes // SEGMENTS

    def remove(where: str) -> None:
        done = lake.run(lake.delete(where))
        if done.phase is not Phase.SUCCEEDED:
            raise WrongResult(str(done))

    def rivals_turn() -> None:
        if rival == "append":
            lake.append(model([SEGMENTS * rows]))
        else:
            remove(f"id = {rows - 1}")

    store = lake.store
    noting = Noting(store)
    watch = Watch(rivals_turn, noting)

    def interceptor(effect: Any, call: Callable[[], Any]) -> Any:
        if effect.point is Point.READ_RESULT:
            remove(f"id % {rows} < {each}")
        return watch(effect, call)

    lake.store = cast(Any, noting)
    with patch.object(os, "fsync", watch.sync):
        status = lake.run(lake.compaction("Major"), interceptor=interceptor)
    lake.store = store
    if status.phase is not Phase.SUCCEEDED or status.result is None:
        raise WrongResult(str(status))
    reconciled = status.result.reconciled
    more = 1 if rival == "delete" else 0
    if reconciled is None or reconciled.deletes_remapped != each * SEGMENTS + more:
        raise WrongResult(f"{reconciled} instead of {each * SEGMENTS + more} replayed deletes")
    left = lake.by_deltalake()
    expected = SEGMENTS * (rows - each) + (1 if rival == "append" else -1)
    if len(left) != expected or left != lake.by_tandem():
        raise WrongResult("the readers do not show the rows that are left")
    return watch.last_round()


def run(size: str, work: Path) -> Report:
    """Raises: WrongResult, ChildFailed."""
    samples: dict[str, list[dict[str, float]]] = {rival: [] for rival in RIVALS}
    for number in range(TIMES[size]):
        progress(f"commits {number + 1} of {TIMES[size]}")
        for rival, found in samples.items():
            folder = work / f"critical-{rival}-{number}"
            folder.mkdir()
            found.append(
                in_child(
                    once, folder=str(folder), rival=rival, rows=ROWS[size], deletes=DELETES[size]
                )
            )
            shutil.rmtree(folder)
    figures = {
        rival: {part: Samples.of(one[part] for one in found) for part in found[0]}
        for rival, found in samples.items()
    }
    return Report(
        name="critical",
        title="The critical section of a commit",
        setting=(
            f"{SEGMENTS} segments of {ROWS[size]:,} rows are compacted while {DELETES[size]:,} of "
            "their rows are deleted; the deletes are replayed, and the put is lost to a rival. "
            f"{TIMES[size]} runs with each rival, alternating, each with separate files and a "
            "separate process, on local disk. Every sync is real."
        ),
        tables=(
            Table(
                f"The last round, milliseconds (aim: at most {AIM_MS} to the put's response)",
                ("", *(f"the rival {text}" for text in RIVALS.values())),
                tuple(
                    (part, *(figures[rival][part].text(1) for rival in RIVALS))
                    for part in figures["append"]
                    if part not in COUNTS
                ),
            ),
            Table(
                "Work of the last round",
                ("", *(f"the rival {text}" for text in RIVALS.values())),
                tuple(
                    (part, *(figures[rival][part].text(0) for rival in RIVALS)) for part in COUNTS
                ),
            ),
        ),
        checks=(
            "deltalake and tandem read the rows that were not deleted, each once. The last round "
            "met all deletes.",
        ),
        figures=tuple(
            Figure(
                f"Critical section of a commit, 64 segments, {DELETES[size]:,} replayed deletes, "
                f"the rival {text}",
                f"{figures[rival][ALL].text(1)} ms, of it CPU {figures[rival][CPU].median:.1f} ms",
                f"≤ {AIM_MS} ms",
                figures[rival][ALL].median <= AIM_MS,
            )
            for rival, text in RIVALS.items()
        ),
        raw={
            rival: {part: list(values.values) for part, values in found.items()}
            for rival, found in figures.items()
        },
    )
