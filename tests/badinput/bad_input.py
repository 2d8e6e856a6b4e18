"""What tests of bad input share: a healthy table to damage, the command line, what must hold.

The rule that all of them check: an error names resource, field, found, expected and remedy; the
exit code is the documented one; the table reads as before; what was written cannot be reached.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from deltalake import DeltaTable, write_deltalake
from typer.testing import CliRunner

from support.crash.crash_table import CrashTable
from support.lake import rows as model
from support.lake.rows import Rows, rows
from tandem.cli.app import app
from tandem.delta.actions import CommitInfo, Txn
from tandem.delta.log.delta_log import DeltaLog
from tandem.storage import open_store

VERSION = "tandem.dev/v1alpha1"
FIRST = rows(range(40))


@dataclass(frozen=True)
class Ended:
    """How `tandem run` ended: its exit code, its documents, and its messages."""

    code: int
    documents: list[dict[str, Any]]
    stderr: str

    def condition(self, kind: str) -> dict[str, str]:
        """The condition `Succeeded` of the one resource of that kind."""
        [found] = [d for d in self.documents if d["kind"] == kind]
        [condition] = [c for c in found["status"]["conditions"] if c["type"] == "Succeeded"]
        assert found["status"]["phase"] == "Failed" or condition["status"] == "True"
        return dict(condition)

    def status(self, kind: str) -> dict[str, Any]:
        [found] = [d for d in self.documents if d["kind"] == kind]
        return dict(found["status"])


def document(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


def compaction(**spec: Any) -> dict[str, Any]:
    return document(
        "TableCompaction", "tidy", tableRef={"name": "lake"}, **{"type": "Minor"} | spec
    )


def update(where: str = "k = 1", **set_: str) -> dict[str, Any]:
    body = {"where": where, "set": set_ or {"v": "v + 15"}}
    return document("TableUpdate", "more", tableRef={"name": "lake"}, update=body)


def delete(where: str) -> dict[str, Any]:
    return document("TableUpdate", "less", tableRef={"name": "lake"}, delete={"where": where})


def ingest(source: Path, format_: str = "Parquet", **options: str) -> dict[str, Any]:
    of = {"format": format_, "location": source.as_uri(), "options": options}
    return document("TableIngest", "load", tableRef={"name": "lake"}, source=of)


@dataclass
class BadLake:
    """A table that is healthy until a test damages it, and a folder for resource files."""

    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / "lake"

    @property
    def log(self) -> Path:
        return self.path / "_delta_log"

    def commit_file(self, version: int) -> Path:
        return self.log / f"{version:020d}.json"

    def lake_table(self, **spec: Any) -> dict[str, Any]:
        return document("LakeTable", "lake", **{"location": self.path.as_uri()} | spec)

    def make(self, properties: Mapping[str, str] | None = None) -> BadLake:
        """Four loads of ten rows by deltalake, deletion vectors on."""
        chosen = {"delta.enableDeletionVectors": "true"} if properties is None else properties
        for load in range(4):
            write_deltalake(
                str(self.path),
                model.table(rows(range(load * 10, load * 10 + 10))),
                mode="append",
                configuration=dict(chosen) if not load else None,
            )
        return self

    # Running

    def write(self, *documents: Mapping[str, Any], name: str = "resources.yaml") -> Path:
        file = self.folder / name
        file.write_text(yaml.safe_dump_all([dict(d) for d in documents]))
        return file

    def run(self, *documents: Mapping[str, Any], table: Mapping[str, Any] | None = None) -> Ended:
        """`tandem run` of the LakeTable and these resources, in this process."""
        return tandem("run", "-f", self.write(table or self.lake_table(), *documents))

    # Looking

    def shown(self, version: int | None = None) -> Rows:
        """By deltalake."""
        table = pa.table(DeltaTable(str(self.path), version=version).scan())
        columns = [table.column(name).to_pylist() for name in ("id", "k", "v")]
        return tuple(sorted(zip(*columns, strict=True)))

    def bytes(self) -> dict[str, bytes]:
        found = (p for p in self.path.rglob("*") if p.is_file())
        return {p.relative_to(self.path).as_posix(): p.read_bytes() for p in found}

    def unreachable(self) -> set[str]:
        return CrashTable(self.folder).unreachable()

    @contextmanager
    def unharmed(self) -> Iterator[None]:
        """What happens in the block changes no row and leaves nothing that could be reached;
        all that it may commit is that an attempt is dead."""
        before, version = self.shown(), DeltaTable(str(self.path)).version()
        yield
        log = DeltaLog(open_store(str(self.path)))
        for commit in log.commits(version + 1, log.latest_version()):
            assert all(isinstance(a, CommitInfo | Txn) for a in commit.actions), commit
        assert self.shown() == before
        assert self.unreachable() == set()

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """What happens in the block writes nothing at all: for tables that cannot be read."""
        before = self.bytes()
        yield
        assert self.bytes() == before


def tandem(*words: str | Path) -> Ended:
    """A command in this process; bugs keep their tracebacks."""
    result = CliRunner().invoke(app, [*map(str, words), "-o", "json"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    documents = json.loads(result.stdout) if result.stdout.strip() else []
    return Ended(result.exit_code, documents, result.stderr)


def assert_mentions(text: str, *parts: str) -> None:
    """Every part of an error is there: resource, field, found, expected, remedy."""
    flat = " ".join(text.split())
    missing = [part for part in parts if part not in flat]
    assert not missing, f"{missing} not in: {flat}"


def edit_commit(path: Path, change: Any) -> None:
    """Rewrite a commit's actions: `change(action) -> action`."""
    actions = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(change(action)) + "\n" for action in actions))
