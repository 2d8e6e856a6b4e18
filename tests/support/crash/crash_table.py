"""A small table for crash tests: what is asked of it, what it must show, what must not be left."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake

from support.cases import APPENDS, COMMIT_TO_LOG, ON_LOG, REWRITES
from support.crash.processes import Order
from support.documents import document
from support.lake import rows as model
from support.lake.log_blocks import LogBlocks
from support.lake.rows import Rows, id_in, k_is, plus, rows, without
from tandem.delta import dv
from tandem.delta.actions import AddFile, Protocol, Txn
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.protocol import writes_deletion_vectors
from tandem.storage import open_store
from tandem.timeline.segments import TAG_ROW_MAP, segment_name

FIRST = rows(range(40))
"""What the table shows before anything runs."""
SOURCE = rows(range(50, 60))
"""What the ingest brings."""
APPENDED = rows(range(100, 105))
"""What another writer appends."""
MERGED: Rows = (
    *((n, n % 5, 3) for n in (5, 7, 15, 25)),
    (38, 3, 0),
    *((n, n % 5, 3) for n in (70, 102)),
)
"""What the merge reads: rows to change, one to delete, two to insert unless they are there."""
UPSERTED: Rows = tuple((n, n % 5, 9) for n in (7, 12, 33, 39, 50, 102))
"""What an upsert or an ingest by key brings: rows that the base table has like this or otherwise,
one that it lacks, new ones, and two that others may write meanwhile."""
DELETED = (2, 17, 35, 39, 103)
"""The keys that a delete by key brings, likewise."""
OTHERWISE = "id >= 30"
"""Rows that a base table has otherwise than its log, which is what readers see."""
LOG = "_tandem/log/"
STAGED = "#"
"""In the names of files that the local store is still writing."""
_OURS = re.compile(r"[0-9a-f]{16}(r\d+)?-\d+/|_tandem/dv/|_tandem/rowmaps/")
_SUCCESS = re.compile(r"tandem:[0-9a-f]{16}(r\d+)?")


def make_template(folder: Path, *, vectors: bool = True) -> Path:
    on = {"delta.enableDeletionVectors": "true"} if vectors else None
    for load in range(4):
        write_deltalake(
            str(folder / "lake"),
            model.table(rows(range(load * 10, load * 10 + 10))),
            mode="append",
            configuration=None if load else on,
        )
    pq.write_table(model.table(SOURCE), folder / "source.parquet")
    pq.write_table(model.table(MERGED), folder / "merged.parquet")
    pq.write_table(model.table(UPSERTED), folder / "upserted.parquet")
    pq.write_table(pa.table({"id": pa.array(DELETED, pa.int64())}), folder / "deleted.parquet")
    return folder


def expected(kind: str, before: Rows) -> Rows:
    """The table after the operation, by a model that is slow and obvious."""
    match kind:
        case _ if kind in REWRITES:
            return before
        case "merge":
            return merge(before)
        case "update":
            return plus(before, k_is(1), 15)
        case "delete":
            return without(before, k_is(3))
        case "ingest":
            return model.join(before, SOURCE)
        case "replace":
            return SOURCE
        case "drop":
            return ()
        case "upsert" | "ingest by key":
            return over(before, UPSERTED)
        case "delete keys":
            return without(before, id_in(DELETED))
    raise ValueError(kind)


def over(before: Rows, upserts: Rows) -> Rows:
    """Each upsert in place of the row with its id."""
    return model.join(without(before, id_in(row[0] for row in upserts)), upserts)


def merge(before: Rows) -> Rows:
    """MERGE ON t.id = s.id: delete where `s.v = 0`, else add it to v; insert what is missing."""
    source = {row[0]: row for row in MERGED}
    found = [row for row in MERGED if row[0] not in {row[0] for row in before}]
    for i, k, v in before:
        amount = source[i][2] if i in source else None
        if amount != 0:
            found.append((i, k, v + (amount or 0)))
    return tuple(sorted(found))


def expected_beside(kind: str, meanwhile: str) -> Rows:
    """The table after the operation, where a foreign commit came between its plan and its commit.
    A replace in scope `AtStart` keeps rows that were appended since; all others see them."""
    if kind == "replace" and meanwhile == "append":
        return model.join(SOURCE, APPENDED)
    return expected(kind, after_foreign(meanwhile, FIRST))


def after_foreign(what: str, before: Rows) -> Rows:
    """The table after `support.foreign.writer`. Only the merge touches what it touches."""
    match what:
        case "":
            return before
        case "append":
            return model.join(before, APPENDED)
        case "update":
            return tuple(
                sorted((i, k, -1) if k == 2 and i < 20 else (i, k, v) for i, k, v in before)
            )
        case "delete":
            return without(before, lambda row: row[1] == 2 and row[0] < 10)
    raise ValueError(what)


@dataclass(frozen=True)
class CrashTable:
    """`folder` holds the table `lake` and the file that an ingest reads."""

    folder: Path

    @classmethod
    def copy(cls, template: Path, folder: Path) -> CrashTable:
        shutil.copytree(template, folder)
        return cls(folder)

    @property
    def path(self) -> Path:
        return self.folder / "lake"

    def resource(self, kind: str) -> dict[str, Any]:
        source = self._source("source")
        bodies: Mapping[str, tuple[str, dict[str, Any]]] = {
            "compaction": ("TableCompaction", {"type": "Minor"}),
            # Serializable: so that a mere append makes it evaluate another round.
            "update": (
                "TableUpdate",
                {
                    "update": {"where": "k = 1", "set": {"v": "v + 15"}},
                    "isolation": "Serializable",
                },
            ),
            "delete": (
                "TableUpdate",
                {"delete": {"where": "k = 3"}, "isolation": "Serializable"},
            ),
            "ingest": ("TableIngest", {"source": source}),
            "upsert": ("TableUpdate", {"upsert": {"source": self._source("upserted")}}),
            "delete keys": ("TableUpdate", {"deleteKeys": {"source": self._source("deleted")}}),
            "ingest by key": ("TableIngest", {"source": self._source("upserted")}),
            "sort": (
                "TableCompaction",
                {"type": "Minor", "layout": {"strategy": "Sort", "columns": ["k", "v"]}},
            ),
            "z-order": (
                "TableCompaction",
                {"type": "Major", "layout": {"strategy": "ZOrder", "columns": ["k", "v"]}},
            ),
            "merge": ("TableUpdate", {"merge": self._merge(), "isolation": "Serializable"}),
            "log compaction": ("LogCompaction", {"strategy": "AllBlocks"}),
            "log merge": ("TableCompaction", {"type": "LogMerge"}),
            "replace": ("TableReplace", {"replace": {"intervals": ["all"]}, "source": source}),
            "drop": ("TableReplace", {"replace": {"intervals": ["all"]}, "scope": "AtCommit"}),
            "segment rewrite": (
                "SegmentRewrite",
                {"segments": self._segments(), "rewrite": {"recompress": {"codec": "gzip"}}},
            ),
        }
        name, body = bodies[kind]
        return document(
            name, f"the-{kind.replace(' ', '-')}", {"tableRef": {"name": "lake"}, **body}
        )

    def _source(self, name: str) -> dict[str, str]:
        return {"format": "Parquet", "location": (self.folder / f"{name}.parquet").as_uri()}

    def _merge(self) -> dict[str, Any]:
        return {
            "source": self._source("merged"),
            "on": "t.id = s.id",
            "whenMatched": [
                {"where": "s.v = 0", "delete": {}},
                {"update": {"set": {"v": "t.v + s.v"}}},
            ],
            "whenNotMatched": [{"insertAll": {}}],
        }

    def _segments(self) -> list[str]:
        """Those of the first load, which the foreign update replaces, and of the last."""
        log = DeltaLog(open_store(str(self.path)))
        loads = (log.commit(version) for version in (0, 3))
        return [segment_name(add) for load in loads if load is not None for add in load.adds]

    def order(self, kind: str, **more: Any) -> Order:
        """What a process is to do; a kind that needs a log finds one."""
        if kind in (*ON_LOG, *APPENDS) and not self._log_path.exists():
            self._make_log()
        if kind in COMMIT_TO_LOG and more.get("meanwhile"):
            # Commits of the base table do not concern it, or come before what it appends.
            more["meanwhile"] = f"{more['meanwhile']} by the log"
        answer = str(self.folder / f"answer-{more.pop('answer', 'only')}.json")
        return Order(self.path.as_uri(), self.resource(kind), answer, **more)

    @property
    def _log_path(self) -> Path:
        return self.path / LOG

    def _make_log(self) -> None:
        """A base table of which the log changes rows, of a file all or one, brings back deleted
        ones, and deletes one."""
        table = DeltaTable(str(self.path))
        table.update(predicate=OTHERWISE, updates={"v": "-7"})
        table.delete("id = 39")
        write_deltalake(str(self.path), model.table(((200, 0, 0),)), mode="append")
        log = LogBlocks(str(self.path), "shop", made=True)
        log.upsert(tuple((i, k, -8) for i, k, _ in FIRST[32:]))
        log.upsert((FIRST[15], *FIRST[30:]))
        log.delete(200)

    # Looking

    @property
    def begins(self) -> int:
        """The version with which the story begins."""
        return 3 if not self._log_path.exists() else 6

    def _logs(self) -> Mapping[str, DeltaLog]:
        """The log of the table, and that of its log of blocks, by the folder of what they name."""
        folders = ("", LOG) if self._log_path.exists() else ("",)
        return {folder: DeltaLog(open_store(str(self.path / folder))) for folder in folders}

    @property
    def version(self) -> int:
        return int(DeltaTable(str(self.path)).version())

    def shown(self, version: int | None = None) -> Rows:
        """By deltalake; by our reader where a log comes over it."""
        if self._log_path.exists():
            return LogBlocks(str(self.path), "").view(version)
        table = pa.table(DeltaTable(str(self.path), version=version).scan())
        columns = [table.column(name).to_pylist() for name in ("id", "k", "v")]
        return tuple(sorted(zip(*columns, strict=True)))

    def history(self) -> list[Rows]:
        """What each version shows, from where the story begins."""
        return [self.shown(version) for version in range(self.begins, self.version + 1)]

    def files(self) -> dict[str, int]:
        """Every file below the table's root and its size, staged ones included."""
        found = (p for p in self.path.rglob("*") if p.is_file())
        return {p.relative_to(self.path).as_posix(): p.stat().st_size for p in found}

    def named(self) -> set[str]:
        """Every file of ours that any version of the log names."""
        found: set[str] = set()
        for folder, log in self._logs().items():
            for commit in log.commits(0, log.latest_version()):
                for add in commit.adds:
                    found.add(folder + add.path)
                    found.add(add.tags.get(TAG_ROW_MAP, ""))
                    if add.deletion_vector is not None and add.deletion_vector.storage == "u":
                        found.add(dv.file_path(add.deletion_vector))
        return found

    def successes(self) -> int:
        """How many commits say that an operation of ours succeeded by them."""
        return sum(
            bool(_SUCCESS.fullmatch(action.app_id))
            for log in self._logs().values()
            for commit in log.commits(0, log.latest_version())
            for action in commit.actions
            if isinstance(action, Txn)
        )

    def assert_as_allowed(self) -> None:
        """No commit changes the protocol; where deletion vectors are off, none adds one (R-2)."""
        log = DeltaLog(open_store(str(self.path)))
        snapshot = log.snapshot()
        commits = log.commits(1, snapshot.version)
        actions = [action for commit in commits for action in commit.actions]
        assert not [action for action in actions if isinstance(action, Protocol)]
        if not writes_deletion_vectors(snapshot.protocol, snapshot.metadata):
            adds = [action for action in actions if isinstance(action, AddFile)]
            assert not [add.path for add in adds if add.deletion_vector is not None]

    def append_to_log(self, writer: str, upserts: Rows) -> None:
        """Append a batch by a log writer, and have it acknowledged."""
        LogBlocks(str(self.path), writer).upsert(upserts)

    def appended(self) -> list[int]:
        """The instants that operations of ours have added."""
        log = self._logs()[LOG]
        commits = log.commits(0, log.latest_version())
        return [c.version for c in commits if any(_OURS.match(add.path) for add in c.adds)]

    def unreachable(self) -> set[str]:
        """Data, deletion vectors and row maps that no version names."""
        files = self.files()
        return {path for path in files if _OURS.match(path.removeprefix(LOG))} - self.named()

    def move_claims_to_another_host(self) -> None:
        """As if the processes that claimed attempts ran elsewhere, where we cannot see whether
        they live."""
        for path in self.path.glob("_tandem/**/operations/*/attempts/*/attempt.json"):
            claim = json.loads(path.read_text())
            path.write_text(json.dumps({**claim, "host": "another-host"}))
