"""The live files as an Arrow table: one row per file, one chunk per batch of the log.

A million files are a dozen Arrow buffers, not a million Python objects: only rows that a caller
asks for become `AddFile`s. `path` is `AddFile.logged_path`. No I/O here.

Replay of the log is a small pure fold (protocol, "Action Reconciliation"). The newest reference
wins for each logical file, that is each (logged path, deletion vector id). A remove stays in
`files` as a tombstone: it hides what a checkpoint below still lists.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.actions import (
    Action,
    AddFile,
    Commit,
    DomainMetadata,
    Metadata,
    Protocol,
    RemoveFile,
    Txn,
)
from tandem.delta.log.codec import decode_deletion_vector, encode_deletion_vector
from tandem.storage.paths import path_identity

FileKey = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class Replay:
    """The state after a sequence of actions.

    `files` holds the newest reference to every logical file of the sequence, and `domains` the
    newest action of every domain. Both include removed ones, which hide entries of an older
    checkpoint; readers drop those.
    """

    protocol: Protocol | None = None
    metadata: Metadata | None = None
    txns: Mapping[str, Txn] = field(default_factory=dict)
    domains: Mapping[str, DomainMetadata] = field(default_factory=dict)
    files: Mapping[FileKey, AddFile | RemoveFile] = field(default_factory=dict)

    @property
    def live(self) -> dict[FileKey, AddFile]:
        return {k: a for k, a in self.files.items() if isinstance(a, AddFile)}

    @property
    def live_domains(self) -> dict[str, DomainMetadata]:
        return {k: d for k, d in self.domains.items() if not d.removed}


EMPTY_REPLAY = Replay()


def fold(start: Replay, commits: Iterable[Commit]) -> Replay:
    """`start` followed by the commits, oldest first."""
    return fold_actions(start, (action for commit in commits for action in commit.actions))


def fold_actions(start: Replay, actions: Iterable[Action]) -> Replay:
    """`start` followed by the actions, oldest first."""
    protocol, metadata = start.protocol, start.metadata
    txns, domains, files = dict(start.txns), dict(start.domains), dict(start.files)
    for action in actions:
        match action:
            case AddFile() | RemoveFile():
                # Re-inserted, so that the order of keys is the order of the newest references.
                files.pop(action.key, None)
                files[action.key] = action
            case Txn():
                txns[action.app_id] = action
            case DomainMetadata():
                domains[action.domain] = action
            case Metadata():
                metadata = action
            case Protocol():
                protocol = action
            case _:
                pass  # commitInfo and change files: no part of the state
    return Replay(protocol, metadata, txns, domains, files)


STRINGS = pa.map_(pa.string(), pa.string())

DELETION_VECTOR = pa.struct(
    [
        ("storageType", pa.string()),
        ("pathOrInlineDv", pa.string()),
        ("offset", pa.int32()),
        ("sizeInBytes", pa.int32()),
        ("cardinality", pa.int64()),
    ]
)

# The protocol's names of the fields that `AddFile` keeps in `extra` but a checkpoint has as
# columns of their own.
EXTRA_COLUMNS = {
    "base_row_id": ("baseRowId", pa.int64()),
    "default_row_commit_version": ("defaultRowCommitVersion", pa.int64()),
    "clustering_provider": ("clusteringProvider", pa.string()),
}

SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("partition_values", STRINGS),
        ("size", pa.int64()),
        ("modified_ms", pa.int64()),
        ("data_change", pa.bool_()),
        ("stats", pa.string()),
        ("tags", STRINGS),
        ("deletion_vector", DELETION_VECTOR),
        *((name, type_) for name, (_, type_) in EXTRA_COLUMNS.items()),
        ("extra", pa.string()),
    ]
)
"""`size` in bytes, `modified_ms` in Unix milliseconds, `stats` JSON text as logged (made from
`stats_parsed` where a checkpoint has only that), `extra` JSON text of unknown fields or null, and
of the path as logged if `path` is another one."""

EMPTY = SCHEMA.empty_table()

_SMALL_ROWS = 4_096
"""Chunks of so many rows stay as they are."""
_FEW_ROWS = 512
"""Chunks of so many rows are merged whenever one is added."""


def from_adds(adds: Sequence[AddFile]) -> pa.Table:
    """One row per action, in the order given."""
    if not adds:
        return EMPTY
    known = {field for field, _ in EXTRA_COLUMNS.values()}
    rest = [{k: v for k, v in add.extra.items() if k not in known} for add in adds]
    columns: dict[str, list[Any]] = {
        "path": [a.logged_path for a in adds],
        "partition_values": [list(a.partition_values.items()) for a in adds],
        "size": [a.size for a in adds],
        "modified_ms": [a.modified_ms for a in adds],
        "data_change": [a.data_change for a in adds],
        "stats": [a.stats for a in adds],
        "tags": [list(a.tags.items()) or None for a in adds],
        "deletion_vector": [
            encode_deletion_vector(a.deletion_vector) if a.deletion_vector else None for a in adds
        ],
        "extra": [json.dumps(r, separators=(",", ":")) if r else None for r in rest],
    }
    for name, (key, _) in EXTRA_COLUMNS.items():
        columns[name] = [a.extra.get(key) for a in adds]
    return pa.table([_array(columns[f.name], f.type) for f in SCHEMA], schema=SCHEMA)


def _array(values: Sequence[Any], type_: pa.DataType) -> pa.Array:
    # Most columns have nothing, which takes less time so.
    nothing = values.count(None) == len(values)
    return pa.nulls(len(values), type_) if nothing else pa.array(values, type_)


def to_adds(table: pa.Table, *, batch: int = 4096) -> Iterator[AddFile]:
    """The rows as actions, a batch at a time."""
    for piece in table.to_batches(max_chunksize=batch):
        for row in piece.to_pylist(maps_as_pydicts="strict"):
            yield _to_add(row)


def _to_add(row: dict[str, Any]) -> AddFile:
    extra: dict[str, Any] = json.loads(row["extra"]) if row["extra"] else {}
    for name, (key, _) in EXTRA_COLUMNS.items():
        if row[name] is not None:
            extra[key] = row[name]
    dv = row["deletion_vector"]
    return AddFile(
        logged_path=row["path"],
        partition_values=row["partition_values"] or {},
        size=row["size"],
        modified_ms=row["modified_ms"],
        data_change=row["data_change"],
        stats=row["stats"],
        tags=row["tags"] or {},
        deletion_vector=decode_deletion_vector(dv) if dv else None,
        extra=extra,
    )


def identities(logged: pa.StringArray) -> tuple[pa.StringArray, pa.StringArray]:
    """`path` and `extra` of rows of a checkpoint, from their paths as logged."""
    if not _may_be_respelled(logged):
        return logged, pa.nulls(len(logged), pa.string())
    spelled = logged.to_pylist()
    paths = [path_identity(path) for path in spelled]
    extra = [
        None if path == text else json.dumps({"path": text}, separators=(",", ":"))
        for path, text in zip(paths, spelled, strict=True)
    ]
    return pa.array(paths, pa.string()), pa.array(extra, pa.string())


def _may_be_respelled(logged: pa.StringArray) -> bool:
    """Whether one of the paths may have another identity: it is absolute, or has `./` or `//`. In a
    tenth of the time of Arrow's search for a text: a checkpoint may have millions."""
    absolute = (pc.starts_with(logged, "/"), pc.starts_with(logged, "file:", ignore_case=True))
    if any(pc.any(found).as_py() for found in absolute):
        return True
    data = logged.buffers()[2]
    dots_and_slashes = (np.frombuffer(data or b"", np.uint8) | 1) == ord("/")
    return bool((dots_and_slashes[1:] & dots_and_slashes[:-1]).any())


def logged_paths(rows: pa.RecordBatch) -> pa.Array:
    """The paths as the log spells them, which other readers compare."""
    paths, extra = rows.column("path"), rows.column("extra")
    if extra.null_count == len(extra):
        return paths
    known = (json.loads(text) if text else {} for text in extra.to_pylist())
    spelled = [more.get("path") for more in known]
    return pc.coalesce(pa.array(spelled, pa.string()), paths)


def with_paths(table: pa.Table, paths: Iterable[str]) -> pa.Table:
    """The rows whose logged path is among `paths`."""
    wanted = list(paths)
    if not wanted or not table.num_rows:
        return table.slice(0, 0)
    return table.filter(have_paths(table, wanted))


def have_paths(table: pa.Table, paths: Iterable[str]) -> pa.ChunkedArray:
    """For each row, whether its logged path is among `paths`."""
    return pc.is_in(table["path"], value_set=pa.array(list(paths), pa.string()))


def tag(table: pa.Table, key: str) -> pa.Array:
    """For each row the value of a tag, or null. A seventh of the time of Arrow's `map_lookup`."""
    found = [pa.array([], pa.string())]
    for maps in table["tags"].chunks:
        offsets = maps.offsets.to_numpy()
        start, stop = int(offsets[0]), int(offsets[-1])
        same = pc.equal(maps.keys.slice(start, stop - start), key)
        entries = np.flatnonzero(same.to_numpy(zero_copy_only=False)) + start
        if not len(entries):
            found.append(pa.nulls(len(maps), pa.string()))
            continue
        rows = np.searchsorted(offsets, entries, "right") - 1
        places = np.full(len(maps), -1, np.int64)
        places[rows[::-1]] = entries[::-1]  # of several, the first
        found.append(maps.items.take(pa.array(places, mask=places < 0)))
    return pa.concat_arrays(found)


def without_keys(table: pa.Table, keys: Iterable[FileKey]) -> pa.Table:
    """The rows whose key is not among `keys`: an anti-join that leaves chunks without such rows
    as they are, and compares vectors only for rows whose path occurs in `keys`."""
    hidden = set(keys)
    if not hidden or not table.num_rows:
        return table
    paths = pa.array({path for path, _ in hidden}, pa.string())
    batches = [_without_keys(batch, hidden, paths) for batch in table.to_batches()]
    return pa.Table.from_batches(batches, schema=table.schema)


def _without_keys(batch: pa.RecordBatch, hidden: set[FileKey], paths: pa.Array) -> pa.RecordBatch:
    suspects = pc.indices_nonzero(pc.is_in(batch.column("path"), value_set=paths))
    if not len(suspects):
        return batch
    named = batch.select(["path", "deletion_vector"]).take(suspects).to_pylist()
    keep = [True] * batch.num_rows
    for index, row in zip(suspects.to_pylist(), named, strict=True):
        keep[index] = (row["path"], _dv_id(row["deletion_vector"])) not in hidden
    return batch.filter(pa.array(keep))


def _dv_id(body: dict[str, Any] | None) -> str | None:
    return decode_deletion_vector(body).unique_id if body else None


def combine(tables: Sequence[pa.Table]) -> pa.Table:
    """The concatenated tables. Each chunk makes scans slower, and each commit adds one: small ones
    at the end are merged, each into at least as many rows as its own, so that few are left and
    no row is copied often. Copying a few rows costs less than the scan of one more chunk."""
    table = pa.concat_tables(tables)
    batches = [batch for batch in table.to_batches() if batch.num_rows]
    kept, rows = len(batches), 0
    while kept and (size := batches[kept - 1].num_rows) < _SMALL_ROWS:
        if rows and size > max(rows, _FEW_ROWS):
            break
        kept -= 1
        rows += size
    merged = pa.Table.from_batches(batches[kept:], table.schema).combine_chunks()
    return pa.Table.from_batches([*batches[:kept], *merged.to_batches()], table.schema)
