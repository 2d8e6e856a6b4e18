"""Histories for pictures: logs as JSON actions, such as Tandem and others write them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.lake.delta_log import Json, commit_name, lines, metadata, protocol
from tandem.delta.actions import Commit
from tandem.delta.log.codec import decode_commit

START_MS = 1_795_262_400_000  # 2026-11-21T12:00:00Z
DELTA_RS, SPARK = "delta-rs:py-1.6.6", "Apache-Spark/4.2.0 Delta-Lake/4.4.0"
OURS = "tandem/0.1.0"


def file(name: str, rows: int, *, dead: int = 0, segment: str = "", parents: str = "",
         rewrite: bool = False) -> Json:  # fmt: skip
    """An `add`; `segment` and `parents` are tags of ours."""
    tags = {"tandem.segment": segment, "tandem.sequence": "1"} if segment else {}
    if parents:
        tags["tandem.parents"] = parents
    body: Json = {"path": name, "partitionValues": {}, "size": rows * 12, "modificationTime": 1,
                  "dataChange": not rewrite, "stats": json.dumps({"numRecords": rows}),
                  "tags": tags}  # fmt: skip
    if dead:
        body["deletionVector"] = {"storageType": "u", "pathOrInlineDv": f"{name}-{dead}",
                                  "offset": 1, "sizeInBytes": 3, "cardinality": dead}  # fmt: skip
    return body


def gone(add: Json, *, change: bool) -> Json:
    kept = {k: v for k, v in add.items() if k != "modificationTime"}
    return {**kept, "deletionTimestamp": 1, "dataChange": change}


class Log:
    """A log in the making. Files by name; every call is one version, a minute apart."""

    def __init__(self) -> None:
        self.versions: list[list[Json]] = []
        self.files: dict[str, Json] = {}

    def commit(self, operation: str, engine: str, *, adds: Sequence[Json] = (),
               removes: Sequence[str] = (), **info: Any) -> int:  # fmt: skip
        version = len(self.versions)
        body = {"timestamp": START_MS + version * 61_000, "operation": operation,
                "engineInfo": engine, "operationParameters": {}, **info}  # fmt: skip
        actions: list[Json] = [{"commitInfo": body}]
        actions += [] if version else [protocol(), metadata()]
        change = operation != "OPTIMIZE"
        actions += [{"remove": gone(self.files.pop(name), change=change)} for name in removes]
        for add in adds:
            self.files[add["path"]] = add
        self.versions.append([*actions, *({"add": add} for add in adds)])
        return version

    def append(self, engine: str, name: str, rows: int, **info: Any) -> int:
        return self.commit("WRITE", engine, adds=[file(name, rows)], **info)

    def ingest(self, segment: str, rows: int) -> int:
        add = file(f"{segment}.parquet", rows, segment=segment)
        return self.ours("WRITE", f"TableIngest/day-{segment}", len(self.versions) - 1, [add])

    def mark(self, engine: str, dead: dict[str, int], operation: str = "DELETE") -> int:
        """A commit that deletes rows: `dead` are all deleted rows of a file after it."""
        adds = [_marked(self.files[name], rows) for name, rows in dead.items()]
        return self.commit(operation, engine, adds=adds, removes=list(dead))

    def ours(self, operation: str, resource: str, read: int, adds: Sequence[Json] = (),
             removes: Sequence[str] = (), **result: Any) -> int:  # fmt: skip
        kind = resource.partition("/")[0]
        tandem = {"operation": "0123456789abcdef", "attempt": 1, "kind": kind,
                  "resource": f"default/{resource}", "readVersion": read,
                  "result": result}  # fmt: skip
        return self.commit(operation, OURS, adds=adds, removes=removes, tandem=tandem)

    def commits(self) -> list[Commit]:
        return [
            decode_commit(v, lines(actions), path=commit_name(v), modified_ms=_time(actions))
            for v, actions in enumerate(self.versions)
        ]

    def write(self, folder: Path) -> Path:
        """A table without data files: enough for who reads the log alone."""
        (folder / "_delta_log").mkdir(parents=True)
        for version, actions in enumerate(self.versions):
            (folder / commit_name(version)).write_bytes(lines(actions))
            os.utime(folder / commit_name(version), times=(_time(actions) / 1000,) * 2)
        return folder


def _time(actions: Sequence[Json]) -> int:
    return int(actions[0]["commitInfo"]["timestamp"])


def _marked(add: Json, dead: int) -> Json:
    rows = json.loads(add["stats"])["numRecords"]
    fresh = file(add["path"], rows, dead=dead)
    return {**fresh, "tags": add["tags"]}


def story(engine: str = DELTA_RS) -> Log:
    """Loads, a compaction during which others delete and append, an update that follows rows
    into its output, a foreign OPTIMIZE that takes an input away, a second compaction."""
    log = Log()
    for number in range(4):
        log.ingest(str(number), 120_000)
    log.append(engine, "late-a.parquet", 80_000)
    log.mark(engine, {"1.parquet": 1_500, "2.parquet": 613})
    log.append(SPARK, "late-b.parquet", 40_000)
    log.ours(
        "OPTIMIZE", "TableCompaction/nightly", 3,
        [file("c1.parquet", 480_000, dead=2_113, segment="0.1", parents="0-3", rewrite=True)],
        [f"{number}.parquet" for number in range(4)],
        reconciled={"commitsSeen": 3, "deletesRemapped": 2113, "rounds": 1, "filesMasked": 1,
                    "milliseconds": 4, "bySegment": {"0.1": 2113}},
        summary=["3 commits since version 3", "2,113 deletes replayed onto 0.1 (1 file, 4 ms)"],
    )  # fmt: skip
    log.ours(
        "UPDATE", "TableUpdate/add-15-minutes", 6,
        [_marked(log.files["c1.parquet"], 7_113), file("u.parquet", 5_000, segment="4")],
        ["c1.parquet"],
        rowsAffected={"updated": 5000},
        reconciled={"commitsSeen": 1, "deletesRemapped": 5000, "rounds": 1},
        summary=["1 commit since version 6", "5,000 rows followed into 0.1 (1 file, 2 ms)"],
    )  # fmt: skip
    log.ingest("5", 120_000)
    log.commit(
        "OPTIMIZE", engine,
        adds=[file("theirs.parquet", 120_000, rewrite=True)],
        removes=["late-a.parquet", "late-b.parquet"],
    )  # fmt: skip
    log.mark(SPARK, {"5.parquet": 900})
    log.ours(
        "OPTIMIZE", "TableCompaction/hourly", 9,
        [file("c2.parquet", 677_887, dead=80_900, segment="0.2", parents="0.1,4,5,"
              + _foreign_names("late-a.parquet"), rewrite=True)],
        ["c1.parquet", "u.parquet", "5.parquet"],
        reconciled={"commitsSeen": 2, "deletesRemapped": 900, "rowsMasked": 80_000, "rounds": 1,
                    "met": [{"version": 10, "operation": "OPTIMIZE", "engine": engine,
                             "inputsGone": 1, "rowsMasked": 80_000}]},
        summary=["2 commits since version 9", "900 deletes replayed onto 0.2 (1 file, 3 ms)",
                 f"1 input gone to version 10 by `{engine}` (OPTIMIZE) → 80,000 rows masked"],
    )  # fmt: skip
    log.append(SPARK, "late-c.parquet", 40_000)
    return log


def _foreign_names(*paths: str) -> str:
    from tandem.timeline.names import foreign_name

    return ",".join(map(foreign_name, paths))


def long(versions: int = 2_000) -> Log:
    """Appends by the thousand, with a compaction of ours every fifty versions."""
    log = Log()
    waiting: list[str] = []
    for number in range(versions):
        if number % 50 == 49 and len(waiting) > 20:
            inputs, waiting = waiting[:20], waiting[20:]
            names = _foreign_names(*inputs)
            add = file(f"c{number}.parquet", 2_000, dead=3, segment=f"{number}.1", parents=names,
                       rewrite=True)  # fmt: skip
            log.mark(SPARK, {inputs[0]: 3})
            log.ours("OPTIMIZE", "TableCompaction/minor", len(log.versions) - 6, [add], inputs)
        else:
            waiting.append(f"f{number}.parquet")
            log.append(DELTA_RS if number % 3 else SPARK, waiting[-1], 100)
    return log


def again() -> Log:
    """A merge that met a compaction of ours and then an update: it was executed again after
    that, and so read what the compaction had written."""
    log = Log()
    log.ingest("0", 100)
    log.ingest("1", 100)
    log.ours("OPTIMIZE", "TableCompaction/tidy", 1,
             [file("c.parquet", 200, segment="0.1", parents="0-1", rewrite=True)],
             ["0.parquet", "1.parquet"])  # fmt: skip
    log.mark(DELTA_RS, {"c.parquet": 3})
    log.ours(
        "MERGE", "TableUpdate/upsert", 1,
        [_marked(log.files["c.parquet"], 22), file("u.parquet", 19, segment="2")],
        ["c.parquet"],
        reconciled={"commitsSeen": 2, "rounds": 2,
                    "met": [{"version": 3, "operation": "DELETE", "executedAgain": True}]},
        summary=["2 commits since version 1, met in 2 rounds",
                 f"the whole statement executed again after version 3 by `{DELTA_RS}` (DELETE)"],
    )  # fmt: skip
    return log
