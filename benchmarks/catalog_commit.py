"""What a catalog adds to a commit: through a server of Unity Catalog on loopback, and by a folder.

The server is that of the tests: over SQLite, and built without optimization.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from benchmarks import data
from benchmarks.harness import (
    Figure,
    Report,
    Samples,
    Table,
    WrongResult,
    cpu_s,
    in_child,
    progress,
    timed,
)

TIMES = {"toy": 2, "small": 50, "full": 300}
FOLDER, CATALOG = "folder", "catalog"
PLAIN, MARK = "without new row ids", "with new row ids"
WHAT = (PLAIN, MARK)
MOST_MS, MOST_REQUESTS = 30, 6
STEPS = {
    "load": "read of the catalog's state",
    "add_commit": "commit",
    "report_published": "report",
}


def committed(work: str, what: str, times: int) -> dict[str, Any]:
    """In a separate process: milliseconds of commits to both tables, in turns, each with the read
    of what was committed; those of the catalog's answers, and the requests of one commit."""
    from support.lake.noted import Noted
    from support.lake.unity import start_server
    from support.lake.unity_proxy import proxy_before
    from tandem.delta.log.catalog_log import CatalogLog
    from tandem.delta.log.delta_log import DeltaLog
    from tandem.storage import Store, open_store

    with start_server() as server, proxy_before(server.url) as proxy:
        table = server.create_table(columns=dict.fromkeys("abcdef", "long"), row_ids=True)
        folder = data.copy_table(table.folder, Path(work, FOLDER))
        _unmanage(folder)
        client = table.client()
        answers: dict[str, list[float]] = {step: [] for step in STEPS}
        for step, each in answers.items():
            setattr(client, step, _noting(getattr(client, step), each))
        store = open_store(table.folder.as_uri())
        managed = DeltaLog(store, commits=CatalogLog(store, client, table.table_id))
        logs = {FOLDER: DeltaLog(open_store(folder.as_uri())), CATALOG: managed}
        newest = {name: log.snapshot() for name, log in logs.items()}
        ms: dict[str, list[float]] = {name: [] for name in logs}
        for number in range(times + 1):
            if number == 1:  # connections and the server's own caches are warm
                ms = {name: [] for name in logs}
                for each in answers.values():
                    each.clear()
                ours, all_cpu = time.process_time(), cpu_s()
            for name, log in logs.items():
                seconds, newest[name] = timed(_commit, log, newest[name], number, what)
                ms[name].append(seconds * 1000)
        ours, all_cpu = time.process_time() - ours, cpu_s() - all_cpu
        versions = {name: log.snapshot().version for name, log in logs.items()}

        noted = cast(Store, Noted(store))
        counted = DeltaLog(
            noted, commits=CatalogLog(noted, table.client(proxy.url), table.table_id)
        )
        latest = counted.snapshot()
        cast(Noted, noted).taken()
        proxy.calls.clear()
        _commit(counted, latest, times + 1, what)
        requests = [*proxy.kinds(), *cast(Noted, noted).taken()]
    return {
        "ms": ms,
        "answers": answers,
        "server_cpu_ms": (all_cpu - ours) * 1000 / times,
        "versions": versions,
        "requests": requests,
    }


def _unmanage(folder: Path) -> None:
    """Make it a table of its folder, with all else as it is."""
    path = folder / "_delta_log" / f"{0:020d}.json"
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    for action in actions:
        for key in ("readerFeatures", "writerFeatures"):
            if "protocol" in action:
                action["protocol"][key].remove("catalogManaged")
    path.write_text("".join(json.dumps(each) + "\n" for each in actions))


def _noting(call: Callable[..., Any], into: list[float]) -> Callable[..., Any]:
    def noted(*arguments: Any, **named: Any) -> Any:
        seconds, found = timed(call, *arguments, **named)
        into.append(seconds * 1000)
        return found

    return noted


def _commit(log: Any, snapshot: Any, number: int, what: str) -> Any:
    """As an operation commits. Returns the table with it."""
    from tandem.delta.actions import Action, AddFile, DomainMetadata
    from tandem.delta.log.snapshot import commit_info

    now_ms = time.time_ns() // 1_000_000
    actions: list[Action] = [
        commit_info("WRITE", {}, now_ms=now_ms, previous=snapshot, blind_append=True),
        AddFile(
            f"part-{number}.parquet",
            {},
            1 << 20,
            now_ms,
            data_change=True,
        ),
    ]
    if what == MARK:
        mark = json.dumps({"rowIdHighWaterMark": number * 1000 + 999})
        actions.append(DomainMetadata("delta.rowTracking", mark, removed=False))
    known: dict[int, bytes] = {}
    if log.commit_after(snapshot, actions, token=f"t{number}", known=known) is not None:
        raise WrongResult(f"version {snapshot.version + 1} was taken")
    return log.update(snapshot, known=known)


def run(size: str, work: Path) -> Report:
    """Raises: WrongResult, ChildFailed."""
    times = TIMES[size]
    rows, steps, figures, raw = [], [], [], {}
    for what in WHAT:
        progress(f"commits {what}")
        out = work / what.replace(" ", "-")
        out.mkdir()
        found = in_child(committed, work=str(out), what=what, times=times, timeout=3600)
        if set(found["versions"].values()) != {times + 1}:
            raise WrongResult(f"{what}: {found['versions']}")
        raw[what] = found
        each = {name: Samples.of(found["ms"][name]) for name in found["ms"]}
        pairs = zip(each[CATALOG].values, each[FOLDER].values, strict=True)
        more = Samples.of(a - b for a, b in pairs)
        answers = {step: Samples.of(found["answers"][step]) for step in STEPS}
        requests, lists = found["requests"], sum("list" in one for one in found["requests"])
        texts = [each[name].text(1) for name in (FOLDER, CATALOG)]
        rows.append((what, *texts, more.text(1), str(len(requests))))
        cpu = f"{found['server_cpu_ms']:.1f}"
        steps.append((what, *(answers[step].text(1) for step in STEPS), cpu))
        figures.append(
            Figure(
                f"Commit {what}: milliseconds through the catalog beside the folder's",
                more.text(1),
                f"at most {MOST_MS} more",
                more.median <= MOST_MS,
            )
        )
        figures.append(
            Figure(
                f"Commit {what}: requests",
                f"{len(requests)}, {lists} of them listings",
                f"at most {MOST_REQUESTS}, no listing",
                len(requests) <= MOST_REQUESTS and not lists,
            )
        )
    return Report(
        name="catalog_commit",
        title="Commits through a catalog",
        setting=f"A table with row tracking, and a copy of it that no catalog manages; {times} "
        "commits of one file to each, in turns, each with the read of the version that it makes, "
        "in one process. The server of Unity Catalog's API is that of the tests: on loopback, over "
        "SQLite, built without optimization.",
        tables=(
            Table(
                "Milliseconds of a commit",
                ("commit", "by the folder", "through the catalog", "difference", "requests"),
                tuple(rows),
            ),
            Table(
                "Of those, milliseconds until the catalog has answered",
                ("commit", *STEPS.values(), "CPU of the server, all in all"),
                tuple(steps),
            ),
        ),
        checks=("Both tables have all the versions, each made once.",),
        raw=raw,
        figures=tuple(figures),
    )
