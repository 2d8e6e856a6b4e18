"""Keep a local copy of a Delta table that shows exactly the rows of one version at every moment.

    .venv/bin/python examples/follow.py LOCATION FOLDER

An example of a loader of single segments: it copies the data files of a table piece by piece, and
`serving.py` decides what the copy shows meanwhile. While the output of a compaction is
on its way, the files that it was made from are shown in its place, without the rows that were
deleted since. So a new append is visible before a large compaction that was committed earlier has
been copied.

The copy is `FOLDER/shown.json`, which names files of `FOLDER/parts` and the rows to leave out. It
is renewed by a rename. A file gets its name when it is complete, and is removed only when
`shown.json` no longer names it. So the process may be killed anywhere, and continues from what is
there. `read` returns the rows of a copy. Only one process may write it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from base64 import b64decode, b64encode
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyroaring import BitMap64
from serving import LivePart, Part, RewrittenParts, ServingTimeline, Shown, StandIns

from tandem.delta import schema as schema_
from tandem.delta.actions import AddFile, Commit, RemoveFile
from tandem.delta.datafiles.reader import DataFileReader, TableFormat, arrow_schema
from tandem.delta.log.delta_log import DeltaLog
from tandem.delta.log.snapshot import Snapshot
from tandem.delta.scan import check_rows
from tandem.errors import DataFileMissing, LogGap, ObjectNotFound, VersionNotFound
from tandem.operations.kinds.commit_history import PublishedRowMaps, VectorCache
from tandem.rowmap.run_table import span
from tandem.storage import open_store
from tandem.storage.local import LocalStore
from tandem.timeline.lineage import group_size_of, root_of

PIECE = 8 << 20
"""Bytes that are copied before the log is looked at again."""
SHOWN, PARTS, UNFINISHED = "shown.json", "parts", ".unfinished"
MOST_ROWS = 1 << 40
GONE = (DataFileMissing, ObjectNotFound)


class Copy:
    """The local copy: complete files, and what is shown of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / PARTS).mkdir(parents=True, exist_ok=True)
        for left in (folder / PARTS).glob(f"*{UNFINISHED}"):
            left.unlink()

    def file(self, table_id: str, logged_path: str) -> Path:
        digest = hashlib.sha256(f"{table_id} {logged_path}".encode()).hexdigest()
        return self.folder / PARTS / f"{digest[:40]}.parquet"

    def shown(self) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = json.loads((self.folder / SHOWN).read_text())
        except FileNotFoundError:
            return None
        return found

    def show(self, content: Mapping[str, Any]) -> None:
        """Replace all that is shown at once."""
        new = self.folder / (SHOWN + UNFINISHED)
        with new.open("w") as file:
            json.dump(content, file)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.folder / SHOWN)
        _sync(self.folder)

    def keep(self, names: Collection[str]) -> None:
        """Remove all other files."""
        for file in (self.folder / PARTS).iterdir():
            if file.name.removesuffix(UNFINISHED) not in names:
                file.unlink()


def read(folder: Path) -> tuple[int, pa.Table]:
    """The version that a copy shows, and its rows. Beside a running follower, too."""
    while True:
        content = json.loads((folder / SHOWN).read_text())
        try:
            return content["version"], _rows(folder, content)
        except DataFileMissing:  # it shows something newer by now
            if json.loads((folder / SHOWN).read_text()) == content:
                raise


def _rows(folder: Path, content: Mapping[str, Any]) -> pa.Table:
    table = content["table"]
    format_ = TableFormat(
        schema_.parse(table["schema"]), tuple(table["partitions"]), table["configuration"]
    )
    store = LocalStore(str(folder))
    batches: list[pa.RecordBatch] = []
    for part in content["parts"]:
        hidden = BitMap64.deserialize(b64decode(part["hidden"]))
        with DataFileReader(
            store, f"{PARTS}/{part['file']}", format_, partition_values=part["partition"]
        ) as reader:
            batches += reader.batches(dead=hidden)
    return pa.Table.from_batches(batches, arrow_schema(format_))


class Follower:
    """Copies one table. Call `step` until it returns False: then there is nothing to do for now."""

    def __init__(self, location: str, folder: Path, *, piece: int = PIECE) -> None:
        self._store = open_store(location)
        self._log = DeltaLog(self._store)
        self._copy, self._piece = Copy(folder), piece
        self._begin()

    def _begin(self) -> None:
        """Start from the version that is shown, if the log still has it: what was rewritten since
        may have stand-ins."""
        shown = self._content = self._copy.shown()
        snapshot = None
        if shown is not None:
            try:
                snapshot = self._log.snapshot(shown["version"])
            except VersionNotFound:
                say(f"version {shown['version']} is gone from the log")
        if snapshot is None or shown is None or snapshot.metadata.id != shown["table"]["id"]:
            self._start_at(self._log.snapshot())
            return
        self._start_at(snapshot)
        self._partitions.update((part["path"], part["partition"]) for part in shown["parts"])
        self._announce()

    def _start_at(self, snapshot: Snapshot) -> None:
        check_rows(snapshot)
        self._latest = self._goal = snapshot
        self._adds = {add.logged_path: add for add in snapshot.adds()}
        self._known = dict(self._adds)
        self._partitions = {path: dict(add.partition_values) for path, add in self._adds.items()}
        self._loaded = ServingTimeline()
        self._unfinished: dict[str, int] = {}
        self._rows: dict[str, int] = {}
        self._vectors = VectorCache(self._store)
        self._row_maps = PublishedRowMaps(self._store, snapshot.metadata.id, lambda: MOST_ROWS)
        self._rewrites: list[RewrittenParts] = []
        self._announce()

    def step(self) -> bool:
        """Follow the log; show the version that is the goal, if all of its rows are there; else
        copy one piece of a file."""
        self._follow()
        if self._content is not None and self._goal.version == self._content["version"]:
            self._goal = self._latest
        try:
            shown = StandIns(self._row_maps, self._rewrites).show(
                self._version(self._goal), self._loaded
            )
        except GONE:
            if self._goal.version == self._latest.version:
                raise
            self._goal = self._latest  # the goal's deletion vectors were cleaned away
            return True
        if not shown.missing:
            changed = self._publish(shown)
            if changed or self._goal.version != self._latest.version:
                return True
        return self._load(shown)

    def _follow(self) -> None:
        latest = self._log.update(self._latest)
        if (
            latest.version == self._latest.version
            and latest.metadata.id == self._latest.metadata.id
        ):
            return
        if latest.metadata.id != self._latest.metadata.id or latest.version < self._latest.version:
            self._start_at(latest)
            return
        check_rows(latest)
        try:
            for commit in self._log.commits(self._latest.version + 1, latest.version):
                self._note(commit)
        except LogGap:  # without the commits between, only row maps say what was rewritten
            self._adds = {add.logged_path: add for add in latest.adds()}
        self._known.update(self._adds)
        self._partitions.update(
            (path, dict(add.partition_values)) for path, add in self._adds.items()
        )
        self._latest = latest
        self._announce()

    def _note(self, commit: Commit) -> None:
        """Follow one commit. One that removes and adds other files and says that it changes no
        rows is a rewrite."""
        adds = {add.logged_path: add for add in commit.adds}
        removes = {gone.logged_path for gone in commit.removes}
        changes = any(a.data_change for a in commit.actions if isinstance(a, AddFile | RemoveFile))
        before = {path: self._adds[path] for path in removes if path in self._adds}
        if adds and len(before) == len(removes) > 0 and not changes and not removes & adds.keys():
            with suppress(*GONE):  # its deletion vectors were cleaned away: only a map says
                self._rewrites.append(RewrittenParts(self._live(before), self._live(adds)))
        for path in removes:
            self._adds.pop(path, None)
        self._adds.update(adds)

    def _live(self, adds: Mapping[str, AddFile]) -> dict[str, BitMap64]:
        vectors = self._vectors
        return {
            path: span(0, vectors.rows_of(add)) - vectors.dead(add) for path, add in adds.items()
        }

    def _version(self, snapshot: Snapshot) -> Iterator[LivePart]:
        adds = {add.logged_path: add for add in snapshot.adds()}
        for path, live in self._live(adds).items():
            yield LivePart(self._part(path), live)

    def _part(self, path: str) -> Part:
        """The part of a file. Its tags name its loads; nothing depends on them."""
        add = self._known.get(path)
        root = root_of(add.tags) if add is not None else None
        if add is None or root is None:
            return Part(path, 0, 1, chunk=path)
        chunk = json.dumps([add.tags.get("tandem.chunk"), dict(add.partition_values)])
        size = group_size_of(add.tags) or 1
        return Part(path, root.first, root.last + 1, root.minor, size, chunk)

    def _file(self, path: str) -> Path:
        return self._copy.file(self._latest.metadata.id, path)

    def _publish(self, shown: Shown) -> bool:
        """Show these rows of the goal. Returns: whether that is anything new."""
        goal = self._goal
        content = {
            "version": goal.version,
            "table": {
                "id": goal.metadata.id,
                "schema": goal.metadata.schema_string,
                "partitions": list(goal.partition_columns),
                "configuration": dict(goal.configuration),
            },
            "parts": [
                {
                    "path": path,
                    "file": self._file(path).name,
                    "partition": self._partitions[path],
                    "hidden": b64encode((self._all_rows(path) - rows).serialize()).decode(),
                }
                for path, rows in sorted(shown.rows.items())
            ],
        }
        if content == self._content:
            return False
        self._copy.show(content)
        self._content = content
        wanted = {*shown.rows, *self._adds, *(path for path in self._paths(goal))}
        self._copy.keep({self._file(path).name for path in wanted})
        for path in [*self._unfinished]:
            if path not in wanted:
                del self._unfinished[path]
        for path in [p for p in self._partitions if p in self._loaded and p not in wanted]:
            self._loaded.withdraw(self._part(path))
        count = sum(map(len, shown.rows.values()))
        waiting = sum(path not in self._loaded for path in self._adds)
        say(
            f"version {goal.version}: {count} rows in {len(shown.rows)} files"
            + (f"; {waiting} still to be copied" if waiting else "")
        )
        return True

    def _load(self, shown: Shown) -> bool:
        """Copy a piece of the smallest file that is needed most. Returns: whether one is needed."""
        missing = {part.name for part in shown.missing}
        wanted = missing or {path for path in self._adds if path not in self._loaded}
        if not wanted:
            return False
        add = min((self._known[path] for path in wanted), key=lambda a: (a.size, a.logged_path))
        path, start = add.logged_path, self._unfinished.get(add.logged_path, 0)
        file = self._file(path)
        unfinished = file.with_name(file.name + UNFINISHED)
        try:
            data = self._store.get_range(add.path, start, self._piece)
        except ObjectNotFound:
            if self._goal.version == self._latest.version:
                raise
            self._goal = self._latest  # the goal was cleaned away
            return True
        with unfinished.open("ab" if start else "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())
        self._unfinished[path] = start + len(data)
        if start + len(data) >= add.size or len(data) < self._piece:
            del self._unfinished[path]
            unfinished.replace(file)
            _sync(file.parent)
            self._loaded.announce(self._part(path))
        return True

    def _announce(self) -> None:
        """Files that were complete before this process began."""
        for path in self._partitions:
            if path not in self._loaded and self._file(path).exists():
                self._loaded.announce(self._part(path))

    def _all_rows(self, path: str) -> BitMap64:
        if path not in self._rows:
            self._rows[path] = pq.read_metadata(self._file(path)).num_rows
        return span(0, self._rows[path])

    @staticmethod
    def _paths(snapshot: Snapshot) -> list[str]:
        return list(snapshot.files["path"].to_pylist())


def _sync(folder: Path) -> None:
    """Make renames in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def say(line: str) -> None:
    print(line, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Keep a local copy of a Delta table.")
    parser.add_argument("location", help="the table: a URL, or a path")
    parser.add_argument("folder", type=Path, help="where the copy is kept")
    parser.add_argument("--once", action="store_true", help="end when all is copied")
    parser.add_argument("--poll", type=float, default=1.0, help="seconds between looks")
    parser.add_argument("--piece", type=int, default=PIECE, help="bytes copied at once")
    options = parser.parse_args()
    location = options.location
    if "://" not in location:
        location = Path(location).absolute().as_uri()
    follower = Follower(location, options.folder, piece=options.piece)
    while True:
        if follower.step():
            continue
        if options.once:
            return 0
        time.sleep(options.poll)


if __name__ == "__main__":
    sys.exit(main())
