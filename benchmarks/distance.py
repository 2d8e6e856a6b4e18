"""The table far away: the S3 test server behind a proxy that delays each request.

Counted are the requests of a whole command, and of the part from the job's result to the answer of
the commit: all of them, and those that waited for one another. With `TANDEM_BEFORE=FOLDER`, another
checkout takes turns with this one.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, Report, Samples, Table, WrongResult, in_child, progress

DELAYS_MS = {"toy": (5,), "small": (50,), "full": (5, 50, 200)}
TIMES = {"toy": 1, "small": 1, "full": 3}
FILES = 12
ROWS = 500
BEFORE = "TANDEM_BEFORE"

CASES = {
    "bin-pack": "A bin-pack of 12 files, whole command",
    "update": "An update of 12 files, each with a deletion vector of its own, whole command",
    "behind": "The same after 30 commits and 12 compactions that the first round meets",
    "races": "A bin-pack of 12 files that loses three races to deletes and appends",
}


@dataclass
class Commits:
    """An interceptor that notes when the part of an operation that commits began and ended, and
    lets rivals act, whose time does not count."""

    before: Callable[[Any], None]
    spans: list[tuple[Any, float, float]] = field(default_factory=list)
    rivals_s: float = 0.0

    def __call__(self, effect: Any, call: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        self.before(effect.point)
        acted = time.perf_counter()
        self.rivals_s += acted - began
        answer = call()
        self.spans.append((effect.point, acted, time.perf_counter()))
        return answer

    def phase(self) -> list[tuple[float, float]]:
        """When the effects ran from the read of the result to the last put."""
        from tandem.operations.machine.events import Point

        points = [point for point, _, _ in self.spans]
        first = points.index(Point.READ_RESULT)
        last = len(points) - 1 - points[::-1].index(Point.PUT_COMMIT)
        return [(began, ended) for _, began, ended in self.spans[first : last + 1]]


def measured(delays_ms: list[int], cases: list[str]) -> dict[str, Any]:
    """In a separate process: each case at each delay, by name."""
    from support.lake.distant import at_a_distance
    from support.lake.s3 import start_server

    found = {}
    with start_server() as server, at_a_distance(server) as distance:
        os.environ |= server.environ
        for name in cases:
            for delay in delays_ms:
                found[f"{name} {delay}"] = _once(server, distance, name, delay / 1000)
    return found


def _once(server: Any, distance: Any, name: str, delay: float) -> dict[str, float]:
    from deltalake import DeltaTable

    from support.jobs import quick_lake
    from support.lake import rows as model
    from support.lake.distant import by_kind, in_sequence
    from support.lake.lake import DELETION_VECTORS
    from tandem.operations import runner
    from tandem.operations.execute import ExecutionOptions
    from tandem.operations.machine.events import Point
    from tandem.spec.status import Phase
    from tandem.storage import open_store

    location = server.fresh_location()
    DeltaTable.create(
        location,
        model.SCHEMA,
        configuration=dict(DELETION_VECTORS),
        storage_options=server.storage_options,
    )
    near = quick_lake.QuickLake(
        location,
        None,  # type: ignore[arg-type]
        Path(tempfile.mkdtemp()),
        open_store(location, server.options),
        options=server.options,
        foreign_options=server.storage_options,
    )
    for number in range(FILES):
        near.append(model.rows(range(number * ROWS, (number + 1) * ROWS)))
        if name in ("update", "behind"):
            near.do(near.delete(f"id = {number * ROWS + 7}"))
    left = FILES * ROWS - (FILES if name in ("update", "behind") else 0)
    acted: list[Any] = []

    def rival(point: Any) -> None:
        nonlocal left
        if name == "behind" and point is Point.READ_RESULT and point not in acted:
            acted.append(point)
            for _ in range(30):
                near.append(model.rows([-1]))
            for segment in near.names[:FILES]:
                purge = {"segments": [segment], "rewrite": {"purgeDeleted": True}}
                near.do(near.resource("SegmentRewrite", purge))
            left += 30
        if name == "races" and point is Point.PUT_COMMIT and len(acted) < 3:
            acted.append(point)
            near.do(near.delete(f"id % {ROWS} = {len(acted)}"))
            near.append(model.rows([-1]))
            left += 1 - FILES

    far = quick_lake.QuickLake(
        location,
        None,  # type: ignore[arg-type]
        Path(),
        open_store(location, distance.server.options),
        options=distance.server.options,
        first_version=near.version,
    )
    packs = name in ("bin-pack", "races")
    operation = far.compaction("Major") if packs else far.update("k = 1", v="v + 1")
    commits = Commits(rival)
    lake = far.table().spec
    assert lake is not None
    distance.seconds = delay
    begun = time.perf_counter()
    options = runner.RunOptions(execution=ExecutionOptions(interceptor=commits), poll_ms=20)
    outcomes = runner.run([lake, operation], options)
    took = time.perf_counter() - begun
    distance.seconds = 0.0
    if any(each.status.phase is not Phase.SUCCEEDED for each in outcomes):
        raise WrongResult(str([each.status for each in outcomes]))
    rows = near.by_tandem()
    if len(rows) != left:
        raise WrongResult(f"{len(rows)} rows instead of {left}")
    requests = [r for r in distance.requests if begun <= r.began <= begun + took]
    phase = commits.phase()
    within = [r for r in requests if any(began <= r.began <= ended for began, ended in phase)]
    if os.environ.get("DISTANCE_SHOWN"):
        for point, began, ended in [("Before", begun, commits.spans[0][1]), *commits.spans]:
            sys.stderr.write(f"{point} {ended - began:.3f}\n")
            for r in sorted(requests, key=lambda r: r.began):
                if began <= r.began <= ended:
                    sys.stderr.write(f"    {r.began - began:.3f} {r.text}\n")
    return {
        "seconds": took - commits.rivals_s,
        "requests": len(requests),
        "in sequence": in_sequence(requests),
        "absent": by_kind(requests)["absent"],
        "commit seconds": sum(ended - began for began, ended in phase),
        "commit requests": len(within),
        "commit in sequence": in_sequence(within),
        "commit absent": by_kind(within)["absent"],
    }


def run(size: str, work: Path) -> Report:
    """Raises: WrongResult, ChildFailed."""
    del work
    delays = DELAYS_MS[size]
    before = os.environ.get(BEFORE)
    trees = {"now": ROOT, **({"before": Path(before)} if before else {})}
    samples: dict[tuple[str, str], list[Mapping[str, float]]] = {}
    for number in range(TIMES[size]):
        for tree, folder in trees.items():
            progress(f"{tree} {number + 1} of {TIMES[size]}")
            found = in_child(
                measured,
                operator=folder / "operator",
                delays_ms=list(delays),
                cases=list(CASES),
                timeout=3600,
            )
            for key, one in found.items():
                samples.setdefault((tree, key), []).append(one)
    names = list(next(iter(samples.values()))[0])

    def cell(case: str, delay: int, name: str) -> str:
        texts = []
        for tree in reversed(trees):
            values = Samples.of(one[name] for one in samples[tree, f"{case} {delay}"])
            texts.append(f"{values.median:.{2 if 'seconds' in name else 0}f}")
        return " → ".join(texts)

    tables = tuple(
        Table(
            title,
            ("ms a request", *names),
            tuple((str(d), *(cell(case, d, name) for name in names)) for d in delays),
        )
        for case, title in CASES.items()
    )
    arrow = " Before → now: two checkouts that took turns." if before else ""
    return Report(
        name="distance",
        title="A table at a distance",
        setting="The S3 test server behind a proxy that delays each request; jobs in the process "
        "of the command, which asks for them every 20 ms. *In sequence*: requests that waited for "
        "one another; *absent*: those that asked for an object that was not there. *Commit*: from "
        f"the job's result to the answer of the last put. Medians of {TIMES[size]} runs.{arrow}",
        tables=tables,
        checks=("Every operation succeeds, and the table has as many rows as it must have.",),
        raw={f"{tree} {key}": list(found) for (tree, key), found in samples.items()},
    )
