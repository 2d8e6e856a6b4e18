"""`tandem table` and `tandem locks`: inspect a table."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pydantic import TypeAdapter, ValidationError

from tandem.cli.errors import Exit, say
from tandem.cli.output import (
    ByteSize,
    Output,
    people_time,
    print_data,
    print_table,
    table_of,
    utc,
)
from tandem.errors import InvalidSpec, ReferenceNotFound
from tandem.spec import LakeTable, load
from tandem.spec.fields import Location
from tandem.storage.paths import without_userinfo

if TYPE_CHECKING:
    from tandem.delta.log.delta_log import DeltaLog
    from tandem.delta.log.snapshot import Snapshot
    from tandem.index.library import IndexReader
    from tandem.storage.store import Store
    from tandem.timeline.chunks import TimeColumn


class Target:
    """A table as given on the command line: by its location, or by the name of a LakeTable in the
    given files. `clone_sources`: of a shallow clone, those of the LakeTable among them."""

    def __init__(
        self,
        location: str,
        table: LakeTable | None,
        options: dict[str, str],
        clone_sources: tuple[str, ...] = (),
    ) -> None:
        self.location = location
        self.table = table
        self.options = options
        self.clone_sources = clone_sources

    def open(self) -> Store:
        from tandem.storage import open_store

        return open_store(self.location, self.options, allowed_prefixes=self.clone_sources)

    def log(self) -> DeltaLog:
        from tandem.delta.log.delta_log import DeltaLog

        return DeltaLog(self.open())

    @property
    def has_server(self) -> bool:
        """Whether its LakeTable names an index server."""
        from tandem.index.server.client import server_of

        return self.table is not None and server_of(self.table) is not None

    def index(self, *, base: bool = False) -> IndexReader:
        """Its index: that of the server that its LakeTable names, if there is one. Raises: as
        `open_index`."""
        from tandem.index import TableIndex
        from tandem.index.server.client import index_of

        if self.table is None or not self.has_server:
            return TableIndex(self.log(), base=base)
        return index_of(self.table, self.options, base=base)

    def time_column(self, snapshot: Snapshot) -> TimeColumn | None:
        """The table's time column, as planning uses it."""
        from tandem.operations.kinds.table.time_column import time_column

        return time_column(self.table, snapshot)


def target(
    location_or_name: str,
    files: Sequence[str] = (),
    options: Sequence[str] = (),
    clone_sources: Sequence[str] = (),
) -> Target:
    """Find the table of an argument.

    Args:
        location_or_name: a URL, a path, or with `files` the name of a LakeTable in them.
        files: resources (`-f`).
        options: `key=value` of the object store, in addition to those of the LakeTable.
        clone_sources: locations, in addition to those of the LakeTable.

    Raises:
        InvalidSpec, ReferenceNotFound
    """
    given = dict(key_and_value(text, "--option") for text in options)
    sources = tuple(as_location(text) for text in clone_sources)
    if files:
        tables = [resource for resource in load(files) if isinstance(resource, LakeTable)]
        for table in tables:
            if location_or_name in (table.name, f"LakeTable/{table.name}", table.spec.location):
                storage = table.spec.storage
                every = tuple(dict.fromkeys((*storage.clone_sources, *sources)))
                return Target(table.spec.location, table, {**storage.options, **given}, every)
        if "://" not in location_or_name and "/" not in location_or_name:
            raise ReferenceNotFound(
                "no LakeTable of this name in the files",
                resource=location_or_name,
                expected="one of " + ", ".join(table.name for table in tables),
            )
    return Target(as_location(location_or_name), None, given, sources)


_ONE_SLASH = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(/[^/].*)", re.DOTALL)
"""`file:/data/t`, as Hadoop prints locations."""


def as_location(text: str) -> str:
    """A URL as it is, a local path as a `file` URL; a path may begin with `~/`, which shells do not
    replace in `--from=~/t`. Raises `InvalidSpec`."""
    if "://" not in text:
        if not text:
            raise InvalidSpec(
                "the location is empty",
                found="''",
                expected="file:///path, s3://bucket/path or a path",
                remedy="If it comes from a variable, set the variable",
            )
        if (hadoop := _ONE_SLASH.fullmatch(text)) and not Path(text).exists():
            raise InvalidSpec(
                "a URL needs two slashes after its scheme",
                resource=text,
                expected=f"{hadoop[1]}://{hadoop[2] if hadoop[1] == 'file' else hadoop[2][1:]}",
            )
        if "/" not in text and not Path(text).is_dir():
            raise InvalidSpec(
                "neither a location nor the path of a folder",
                resource=text,
                expected="file:///path, s3://bucket/path, a path, or with -f a LakeTable's name",
            )
        text = "file://" + quote(str(_as_a_shell_would(_at_home(text))))
    try:
        checked: str = TypeAdapter(Location).validate_python(text)
    except ValidationError as error:
        context: dict[str, Any] = error.errors()[0].get("ctx", {})
        raise InvalidSpec(
            str(context.get("error", "not a location")),
            resource=without_userinfo(text),
            field="location",
        ) from error
    return checked


def _at_home(text: str) -> Path:
    """The path, with the home directory in place of a leading `~/`, if there is one."""
    home = os.environ.get("HOME")
    return Path(home, text[2:]) if home and text.startswith("~/") else Path(text)


def _as_a_shell_would(path: Path) -> Path:
    """The absolute path without `..`. Symbolic links before a `..` are resolved, as in a shell. A
    path without `..` stays as typed. (In resources, locations with `..` are refused, since their
    meaning would depend on the machine.)"""
    path = path.absolute()
    if ".." not in path.parts:
        return path
    after = len(path.parts) - path.parts[::-1].index("..")
    return Path(*path.parts[:after]).resolve().joinpath(*path.parts[after:])


def key_and_value(text: str, option: str) -> tuple[str, str]:
    """The parts of `KEY=VALUE`. Raises: InvalidSpec."""
    key, separator, value = text.partition("=")
    if not key or not separator:
        raise InvalidSpec("not an option", resource=option, found=text, expected="KEY=VALUE")
    return key, value


def segments(table: Target, *, output: Output, version: int | None, every: bool) -> Exit:
    """The segments of a version; with `every` also former ones that the log still has."""
    from tandem.timeline.chunks import label
    from tandem.timeline.history import retired
    from tandem.timeline.lineage import format_lineage
    from tandem.timeline.segments import segments as segments_of

    log = table.log()
    snapshot = log.snapshot(version)
    time = table.time_column(snapshot)
    live = segments_of(snapshot.files, time)
    found = list(live)
    if every:
        first, _ = log.versions()
        found = [*retired(live, log.commits(first, snapshot.version)), *live]
        found.sort(key=lambda segment: segment.order)
    rows = []
    for segment in found:
        interval = None
        if segment.interval is not None:
            interval = label(segment.interval, time.granularity) if time else str(segment.interval)
        rows.append(
            {
                "name": segment.name,
                "level": segment.level,
                "status": str(segment.status),
                "interval": interval,
                "loadTime": utc(segment.load_ms),
                "files": len(segment.files),
                "bytes": segment.size_bytes,
                "rows": segment.rows,
                "deletedRows": segment.deleted_rows,
                "loads": segment.loads or None,
                "parents": format_lineage(segment.parents) or None,
            }
        )
    if output is Output.TABLE:
        cells = [
            [
                *(row[name] for name in ("name", "level")),
                _in_words(str(row["status"])),
                row["interval"],
                people_time(segment.load_ms),
                row["files"],
                ByteSize(segment.size_bytes),
                row["rows"],
                row["deletedRows"] or None,  # mostly there are none: the column is left out
                _counted(segment.loads),
                _counted(str(row["parents"] or "")),
            ]
            for segment, row in zip(found, rows, strict=True)
        ]
        names = ["segment", "level", "status", "interval", "loaded (UTC)", "files", "size"]
        print_table(table_of([*names, "rows", "deleted", "loads", "parents"], cells))
    else:
        print_data(rows, output)
    return Exit.OK


def _counted(lineage: str) -> str:
    """A lineage of many parts, shortened to their number: `-o json` lists them."""
    parts = lineage.split(",")
    return lineage if len(parts) <= 2 else f"{len(parts)} in all"


def _in_words(name: str) -> str:
    """`MarkedForUpdate` as `Marked for update`, which can be wrapped."""
    words = re.sub(r"(?<!^)(?=[A-Z])", " ", name)
    return words[:1] + words[1:].lower()


def show(table: Target, *, output: Output, version: int | None) -> Exit:
    """Print a summary of a table at a version."""
    import pyarrow.compute as pc

    from tandem.delta.protocol import features_in_use
    from tandem.timeline.segments import segments as segments_of

    snapshot = table.log().snapshot(version)
    rows = pc.sum(snapshot.num_records).as_py() if not snapshot.num_records.null_count else None
    deleted = pc.sum(snapshot.num_deleted).as_py() or 0
    facts: dict[str, Any] = {
        "location": snapshot.location,
        "version": snapshot.version,
        "time": utc(snapshot.timestamp_ms),
        "tableId": snapshot.metadata.id,
        "files": snapshot.num_files,
        "bytes": snapshot.size_bytes,
        "rows": None if rows is None and snapshot.num_files else (rows or 0) - deleted,
        "deletedRows": deleted,
        "segments": len(segments_of(snapshot.files, table.time_column(snapshot))),
        "partitionColumns": list(snapshot.partition_columns),
        "columns": _columns(snapshot),
        "readerVersion": snapshot.protocol.min_reader,
        "writerVersion": snapshot.protocol.min_writer,
        "featuresInUse": list(features_in_use(snapshot.protocol, snapshot.metadata)),
        "properties": dict(snapshot.configuration),
    }
    if version is None:
        log = _log(table, facts)
        facts |= {"log": log} if log is not None else {}
    if output is Output.TABLE:
        shown = {**facts, "columns": _sql_columns(snapshot)}
        cells = [[name, _cell(name, value)] for name, value in shown.items()]
        print_table(table_of(["fact", "value"], cells))
    else:
        print_data(facts, output)
    return Exit.OK


def _log(table: Target, facts: dict[str, Any]) -> dict[str, Any] | None:
    """The log of a merge-on-read table, as in the status of a LakeTable; None without one."""
    from tandem.operations.model import Table
    from tandem.operations.ports import SystemClock
    from tandem.operations.tables.log_status import read_log_status
    from tandem.spec.status import TableStatus

    opened = table.log()
    status = TableStatus(rows=facts["rows"], deleted_rows=facts["deletedRows"])
    found = read_log_status(
        Table(opened.store, opened, table.location),
        table.table,
        status,
        SystemClock().now_ms(),
    )
    return found.manifest() if found is not None else None


def _columns(snapshot: Snapshot) -> dict[str, str]:
    """Column → the name of its type in Delta; nested types as JSON."""
    fields = json.loads(snapshot.metadata.schema_string)["fields"]
    return {
        field["name"]: field["type"]
        if isinstance(field["type"], str)
        else json.dumps(field["type"], separators=(",", ":"))
        for field in fields
    }


def _sql_columns(snapshot: Snapshot) -> dict[str, str]:
    """Column → its type as SQL writes it: `BIGINT NOT NULL`."""
    return {
        field["name"]: _sql_type(field["type"], field.get("metadata") or {})
        + ("" if field.get("nullable", True) else " NOT NULL")
        for field in json.loads(snapshot.metadata.schema_string)["fields"]
    }


def _sql_type(type_: Any, metadata: dict[str, Any] | None = None) -> str:
    """`ARRAY<STRUCT<a: BIGINT>>`; a type that is unknown by its own name."""
    from tandem.statements.types import type_name

    if bounded := (metadata or {}).get("__CHAR_VARCHAR_TYPE_STRING"):
        return str(bounded).upper()
    if isinstance(type_, str):
        return type_name(type_)
    match type_.get("type"):
        case "struct":
            inner = (f"{part['name']}: {_sql_type(part['type'])}" for part in type_["fields"])
            return f"STRUCT<{', '.join(inner)}>"
        case "array":
            return f"ARRAY<{_sql_type(type_['elementType'])}>"
        case "map":
            return f"MAP<{_sql_type(type_['keyType'])}, {_sql_type(type_['valueType'])}>"
        case other:
            return str(other).upper()


def _cell(name: str, value: Any) -> str:
    if name == "bytes":
        return str(ByteSize(value))
    if isinstance(value, dict):
        return "\n".join(f"{key}: {item}" for key, item in value.items())
    return ", ".join(value) if isinstance(value, list) else str(value)


def locks(table: Target, *, output: Output) -> Exit:
    """Locks held on a table. Without a cluster they exist in the process that runs the operations,
    so another process sees none."""
    table.log().latest_version()
    if output is Output.TABLE:
        say("No locks: without a cluster they exist in the process that runs the operations only.")
    else:
        print_data([], output)
    return Exit.OK
