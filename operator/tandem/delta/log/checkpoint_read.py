"""Reading checkpoints: classic, multi-part and V2 with sidecars (protocol, "Checkpoints").

The file actions stay in Arrow; only the few other actions become Python values. A checkpoint
that cannot be read raises `CorruptLog`: `tandem.delta.log.delta_log` then looks for an older one.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.actions import Action, AddFile, RemoveFile
from tandem.delta.calendar import python_values
from tandem.delta.datafiles.times import ExactParquetFile
from tandem.delta.log import codec, files, names
from tandem.delta.log.listing import Checkpoint
from tandem.delta.log.replay import EMPTY, Replay, fold_actions
from tandem.delta.values import exact_json_value, partition_texts, to_json_value
from tandem.errors import CorruptLog, ObjectNotFound
from tandem.json_types import Json
from tandem.storage.store import Store

_SMALL = ("protocol", "metaData", "txn", "domainMetadata", "sidecar")
_BATCH = 65_536
# Column of our table → field of `add` in a checkpoint.
_ADD_FIELDS = {
    "path": "path",
    "partition_values": "partitionValues",
    "size": "size",
    "modified_ms": "modificationTime",
    "data_change": "dataChange",
    "stats": "stats",
    "tags": "tags",
    "deletion_vector": "deletionVector",
    **{name: field for name, (field, _) in files.EXTRA_COLUMNS.items()},
}


@dataclass(frozen=True, slots=True)
class CheckpointContent:
    """A checkpoint's state: `files` as in `tandem.delta.log.files`, everything else as a `Replay`
    without files."""

    files: pa.Table
    state: Replay


def read(store: Store, checkpoint: Checkpoint) -> CheckpointContent:
    """The content of a complete checkpoint. Raises: CorruptLog, AccessDenied, StorageError."""
    actions: list[Action] = []
    sidecars: list[str] = []
    tables: list[pa.Table] = []
    for meta in checkpoint.files:
        if meta.path.endswith(".json"):
            found, inline, beside = _read_json_top(store, meta.path)
            tables.append(files.from_adds(inline))
        else:
            found, beside = _read_small(store, meta.path)
            tables.extend(_read_adds(store, meta.path))
        actions += found
        sidecars += beside
    for name in sidecars:
        tables.extend(_read_adds(store, _sidecar_path(name)))
    state = fold_actions(EMPTY, actions)
    if state.protocol is None or state.metadata is None:
        raise _corrupt(
            checkpoint.files[0].path,
            "no metaData" if state.metadata is None else "no protocol",
            "a checkpoint has both",
        )
    return CheckpointContent(files.combine(tables or [files.EMPTY]), state)


def read_removes(store: Store, checkpoint: Checkpoint) -> Iterator[RemoveFile]:
    """The tombstones of a checkpoint, for writing the next one."""
    for meta in checkpoint.files:
        if not meta.path.endswith(".json"):
            continue
        for action in _json_actions(store, meta.path):
            if isinstance(action, RemoveFile):
                yield action
    tops = [m.path for m in checkpoint.files if not m.path.endswith(".json")]
    for path in [*tops, *sidecar_paths(store, checkpoint)]:
        yield from _read_removes_of(store, path)


def _read_removes_of(store: Store, path: str) -> Iterator[RemoveFile]:
    with _Parquet(store, path) as parquet:
        for column in parquet.column("remove"):
            for body in column.to_pylist(maps_as_pydicts="strict"):
                action = codec.decode_action("remove", body, path=path)
                if isinstance(action, RemoveFile):
                    yield action


def sidecar_paths(store: Store, checkpoint: Checkpoint) -> list[str]:
    """The sidecars that a checkpoint refers to, as paths in the store. Raises: CorruptLog."""
    found: list[str] = []
    for meta in checkpoint.files:
        if meta.path.endswith(".json"):
            found += _read_json_top(store, meta.path)[2]
        else:
            found += _read_small(store, meta.path)[1]
    return [_sidecar_path(name) for name in found]


class _Parquet:
    """An open Parquet file whose every failure becomes `CorruptLog`."""

    def __init__(self, store: Store, path: str) -> None:
        self._path = path
        try:
            self._source = store.open_input(path)
        except ObjectNotFound as error:
            raise _corrupt(path, "no such file", "the file that the log names") from error

    def __enter__(self) -> _Parquet:
        try:
            # Times in `stats_parsed` are INT96 where Spark wrote them.
            self._file = ExactParquetFile(self._source, resource=self._path)
        except (pa.ArrowException, OSError) as error:
            self._source.close()
            raise _unreadable(self._path, error) from error
        self.schema: pa.Schema = self._file.schema
        columns = self._file.metadata.schema
        leaves = [columns.column(index) for index in range(len(columns))]
        # Spark writes moments so, and times without a zone never.
        self.moments = frozenset(c.path for c in leaves if c.physical_type == "INT96")
        return self

    def __exit__(self, *_: object) -> None:
        self._source.close()

    def column(self, name: str, leaves: Sequence[str] | None = None) -> Iterator[pa.Array]:
        """The non-null values of one top-level struct column, a batch at a time."""
        if name not in self.schema.names:
            return
        wanted = [name] if leaves is None else [f"{name}.{leaf}" for leaf in leaves]
        try:
            for batch in self._file.iter_batches(batch_size=_BATCH, columns=wanted):
                values = batch.column(0)
                if values.null_count:
                    values = values.filter(values.is_valid())
                if len(values):
                    yield values
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(self._path, error) from error


def _read_small(store: Store, path: str) -> tuple[list[Action], list[str]]:
    actions: list[Action] = []
    sidecars: list[str] = []
    with _Parquet(store, path) as parquet:
        for kind in _SMALL:
            for column in parquet.column(kind):
                for body in column.to_pylist(maps_as_pydicts="strict"):
                    if kind == "sidecar":
                        sidecars.append(body["path"])
                        continue
                    action = codec.decode_action(kind, body, path=path)
                    if action is not None:
                        actions.append(action)
    return actions, sidecars


def _read_adds(store: Store, path: str) -> list[pa.Table]:
    with _Parquet(store, path) as parquet:
        if "add" not in parquet.schema.names:
            return []
        type_ = parquet.schema.field("add").type
        present = {f.name for f in type_}
        leaves = [field for field in _ADD_FIELDS.values() if field in present]
        parsed = [n for n in ("stats_parsed", "partitionValues_parsed") if n in present]
        # The parsed forms repeat the others and are several times their size in memory: they
        # are read only where a file lacks the plain ones.
        plain = {"stats_parsed": "stats", "partitionValues_parsed": "partitionValues"}
        absent = [n for n in parsed if plain[n] not in present]
        try:
            tables = [_to_table(v, parquet.moments) for v in parquet.column("add", leaves + absent)]
            lacking = sum(t["stats"].null_count for t in tables)
            if lacking and "stats_parsed" in present and "stats_parsed" not in absent:
                absent.append("stats_parsed")
                tables = [
                    _to_table(v, parquet.moments) for v in parquet.column("add", leaves + absent)
                ]
        except (pa.ArrowException, KeyError) as error:
            raise _unreadable(path, error) from error
        return tables


def _to_table(adds: pa.StructArray, moments: Set[str] = frozenset()) -> pa.Table:
    """`moments` are the paths of columns that hold INT96."""
    present = {f.name for f in adds.type}
    columns: dict[str, pa.Array] = {}
    for field in files.SCHEMA:
        source = _ADD_FIELDS.get(field.name)
        if source in present:
            columns[field.name] = _cast(pc.struct_field(adds, source), field.type)
        else:
            columns[field.name] = pa.nulls(len(adds), field.type)
    if "stats_parsed" in present:
        parsed = pc.struct_field(adds, "stats_parsed")
        columns["stats"] = _stats_text(columns["stats"], parsed, moments)
    if "partitionValues_parsed" in present:
        columns["partition_values"] = _partition_texts(
            pc.struct_field(adds, "partitionValues_parsed")
        )
    if columns["path"].null_count or columns["size"].null_count:
        raise KeyError("add.path or add.size")
    return pa.table([columns[n] for n in files.SCHEMA.names], schema=files.SCHEMA)


def _cast(values: pa.Array, type_: pa.DataType) -> pa.Array:
    if values.type == type_:
        return values
    if pa.types.is_map(type_):
        # Writers differ in the names and nullability of a map's inner fields.
        return pa.MapArray.from_arrays(
            _map_offsets(values),
            values.keys.cast(type_.key_type),
            values.items.cast(type_.item_type),
            type_,
        )
    if pa.types.is_struct(type_):
        have = {f.name for f in values.type}
        children = [
            pc.struct_field(values, f.name).cast(f.type)
            if f.name in have
            else pa.nulls(len(values), f.type)
            for f in type_
        ]
        return pa.StructArray.from_arrays(children, fields=list(type_), mask=values.is_null())
    return values.cast(type_)


def _map_offsets(values: pa.MapArray) -> pa.Array:
    """The offsets with nulls where the map is null, as `from_arrays` expects them."""
    offsets = values.offsets
    if not values.null_count:
        return offsets
    nulls = pa.concat_arrays([values.is_null(), pa.array([False])])
    return pc.if_else(nulls, pa.scalar(None, pa.int32()), offsets)


def _stats_text(stats: pa.Array, parsed: pa.StructArray, moments: Set[str]) -> pa.Array:
    """`stats`, with the rows that lack it made from `stats_parsed`."""
    text: list[str | None] = []
    for have, row in zip(stats.to_pylist(), python_values(parsed), strict=True):
        if have is None and row is not None:
            plain = _plain(row, "add.stats_parsed", moments)
            have = json.dumps(plain, default=exact_json_value, separators=(",", ":"))
        text.append(have)
    return pa.array(text, pa.string())


def _plain(value: Any, path: str, moments: Set[str]) -> Any:
    """The value without nulls, NaN and infinities, which JSON lacks; timestamps with their zone: a
    reader takes one without a zone for a local time."""
    if isinstance(value, dict):
        found = {k: _plain(v, f"{path}.{k}", moments) for k, v in value.items()}
        return {k: v for k, v in found.items() if v is not None}
    if path in moments:
        if isinstance(value, dt.datetime):
            return value.replace(tzinfo=dt.UTC)
        return f"{value}Z" if isinstance(value, str) else value
    return to_json_value(value) if isinstance(value, float) else value


def _partition_texts(parsed: pa.StructArray) -> pa.Array:
    names = [field.name for field in parsed.type]
    texts = [partition_texts(pc.struct_field(parsed, name)) for name in names]
    known = parsed.is_valid().to_pylist()
    rows = [
        [(name, column[row]) for name, column in zip(names, texts, strict=True)] if there else []
        for row, there in enumerate(known)
    ]
    return pa.array(rows, files.STRINGS)


def _json_actions(store: Store, path: str) -> Iterator[Action | Json]:
    try:
        text = store.get(path).decode("utf-8")
    except ObjectNotFound as error:
        raise _corrupt(path, "no such file", "the file that was listed") from error
    except UnicodeDecodeError as error:
        raise _unreadable(path, error) from error
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        for kind, body in codec.decode_line(line, path=path, number=number).items():
            if kind == "sidecar" and body:
                yield body
                continue
            action = codec.decode_action(kind, body, path=path, number=number)
            if action is not None:
                yield action


def _read_json_top(store: Store, path: str) -> tuple[list[Action], list[AddFile], list[str]]:
    actions: list[Action] = []
    adds: list[AddFile] = []
    sidecars: list[str] = []
    for item in _json_actions(store, path):
        if isinstance(item, dict):
            sidecars.append(str(item["path"]))
        elif isinstance(item, AddFile):
            adds.append(item)
        elif not isinstance(item, RemoveFile):
            actions.append(item)
    return actions, adds, sidecars


def _sidecar_path(logged: str) -> str:
    # Sidecars are always in the table's own folder; some writers log more than the name.
    return f"{names.SIDECARS}/{unquote(logged).rsplit('/', 1)[-1]}"


def _unreadable(path: str, error: Exception) -> CorruptLog:
    return _corrupt(path, f"{type(error).__name__}: {error}"[:300], "a whole Parquet or JSON file")


def _corrupt(path: str, found: str, expected: str) -> CorruptLog:
    return CorruptLog(
        "the checkpoint cannot be read",
        resource=path,
        found=found,
        expected=expected,
        remedy="Delete the checkpoint if all commits before it exist; otherwise restore it from "
        "a backup",
    )
