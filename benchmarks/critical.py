"""The part of a commit in which another writer makes us look again: from the read of the last
version to the put's answer.

A compaction of 64 segments has done its work; 100,000 of its rows have been deleted meanwhile,
in all segments. What has to be replayed is replayed in a round before, whose put is lost to
somebody else on purpose; the last round is what is measured.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import Report, Samples, Table, WrongResult, in_child, progress

SEGMENTS = 64
ROWS = {"toy": 200, "small": 4_000, "full": 40_000}
DELETES = {"toy": 640, "small": 12_800, "full": 100_000}
TIMES = {"toy": 1, "small": 3, "full": 7}
AIM_MS = 15


@dataclass
class Watch:
    """Notes when each effect began and ended, and lets somebody act before the first put."""

    rival: Callable[[], None]
    spans: list[tuple[Any, float, float]] = field(default_factory=list)
    lost: bool = False

    def __call__(self, effect: Any, call: Callable[[], Any]) -> Any:
        from tandem.operations.effects import Point

        if effect.point is Point.PUT_COMMIT and not self.lost:
            self.lost = True
            self.rival()
        began = time.perf_counter()
        event = call()
        self.spans.append((effect.point, began, time.perf_counter()))
        return event

    def last_round(self) -> dict[str, float]:
        """Milliseconds by effect, from the last read of the table to the put's answer."""
        from tandem.operations.effects import Point

        points = [point for point, _, _ in self.spans]
        last = len(points) - 1 - points[::-1].index(Point.PUT_COMMIT)
        first = last - points[last::-1].index(Point.READ_TABLE)
        found = {
            str(point): (end - begin) * 1000 for point, begin, end in self.spans[first : last + 1]
        }
        return {**found, "all": (self.spans[last][2] - self.spans[first][1]) * 1000}


def once(folder: str, rows: int, deletes: int) -> dict[str, float]:
    """In a process of its own: one compaction that meets everything."""
    from support import quick_lake
    from support.rows import rows as model
    from tandem.operations.effects import Point
    from tandem.spec.status import Phase

    lake = quick_lake.make(Path(folder), 0)
    for number in range(SEGMENTS):
        lake.append(model(range(number * rows, (number + 1) * rows)))
    each = deletes // SEGMENTS
    gone = f"id % {rows} < {each}"

    def rival() -> None:
        lake.append(model([SEGMENTS * rows]))

    watch = Watch(rival)

    def around(effect: Any, call: Callable[[], Any]) -> Any:
        if effect.point is Point.READ_RESULT:
            done = lake.run(lake.delete(gone))
            if done.phase is not Phase.SUCCEEDED:
                raise WrongResult(str(done))
        return watch(effect, call)

    status = lake.run(lake.compaction("Major"), around=around)
    if status.phase is not Phase.SUCCEEDED or status.result is None:
        raise WrongResult(str(status))
    reconciled = status.result.reconciled
    if reconciled is None or reconciled.deletes_remapped != each * SEGMENTS:
        raise WrongResult(f"{reconciled} instead of {each * SEGMENTS} replayed deletes")
    left = lake.by_deltalake()
    if len(left) != SEGMENTS * (rows - each) + 1 or left != lake.by_tandem():
        raise WrongResult("the readers do not show the rows that are left")
    return watch.last_round()


def run(size: str, work: Path) -> Report:
    """Raises: WrongResult, ChildFailed."""
    samples = []
    for number in range(TIMES[size]):
        progress(f"commit {number + 1} of {TIMES[size]}")
        folder = work / f"critical-{number}"
        folder.mkdir()
        samples.append(in_child(once, folder=str(folder), rows=ROWS[size], deletes=DELETES[size]))
        shutil.rmtree(folder)
    parts = list(samples[0])
    found = {part: Samples.of(sample[part] for sample in samples) for part in parts}
    return Report(
        name="critical",
        title="The critical section of a commit",
        setting=(
            f"{SEGMENTS} segments of {ROWS[size]:,} rows are compacted while {DELETES[size]:,} of "
            f"their rows are deleted. {TIMES[size]} runs, each with files of its own on local disk."
        ),
        tables=(
            Table(
                f"The last round (aim: at most {AIM_MS} ms)",
                ("effect", "milliseconds"),
                tuple((part, values.text(1)) for part, values in found.items()),
            ),
        ),
        checks=("deltalake and we show the rows that were not deleted, each once.",),
        raw={part: list(values.values) for part, values in found.items()},
    )
