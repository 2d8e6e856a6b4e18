"""Reading the checkpoints of a log (protocol, "Checkpoints"): classic, multi-part and V2 with
sidecars.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc

from tandem.delta.actions import Action, AddFile, RemoveFile
from tandem.delta.datafiles.times import ExactParquetFile
from tandem.delta.log import codec, files, listing
from tandem.delta.log.files import EMPTY_REPLAY, Replay, fold_actions
from tandem.delta.log.listing import Checkpoint
from tandem.delta.partitions import exact_json_value, partition_texts, python_values, to_json_value
from tandem.errors import CorruptLog, ObjectNotFound
from tandem.json_types import Json
from tandem.storage.store import Store, side_by_side

BATCH_ROWS = 65_536
IN_MEMORY = 64 << 20
"""Bytes of files that are read whole and held together, with one request each. Of a larger file
only the columns that are needed are read."""


class CheckpointFile:
    """An open Parquet file whose every failure becomes `CorruptLog`, but for `MemoryError`. Use as
    a context manager. `content`: all of its bytes, if they were read already."""

    def __init__(self, store: Store, path: str, content: bytes | None = None) -> None:
        self.path = path
        try:
            self._source: Any = (
                store.open_input(path) if content is None else pa.BufferReader(content)
            )
        except ObjectNotFound as error:
            raise _absent(path) from error

    def __enter__(self) -> CheckpointFile:
        with ExitStack() as unless_opened:
            unless_opened.callback(self._source.close)
            try:
                # Times in `stats_parsed` are INT96 where Spark wrote them.
                self._file = ExactParquetFile(self._source, resource=self.path)
                self.schema: pa.Schema = self._file.schema
                columns = self._file.metadata.schema
                leaves = [columns.column(index) for index in range(len(columns))]
            except MemoryError:
                raise
            except (pa.ArrowException, OSError, ValueError) as error:
                raise unreadable(self.path, error) from error
            unless_opened.pop_all()
        # Spark writes moments so, and times without a zone never.
        self.moments = frozenset(c.path for c in leaves if c.physical_type == "INT96")
        return self

    def __exit__(self, *_: object) -> None:
        self._source.close()

    def column(self, name: str, leaves: Sequence[str] | None = None) -> Iterator[pa.StructArray]:
        """The non-null values of one top-level struct column, a batch at a time. Raises:
        CorruptLog, MemoryError."""
        if name not in self.schema.names:
            return
        wanted = [name] if leaves is None else [f"{name}.{leaf}" for leaf in leaves]
        try:
            for batch in self._file.iter_batches(batch_size=BATCH_ROWS, columns=wanted):
                values = _present(batch)
                if len(values):
                    yield values
        except MemoryError:
            raise  # pyarrow's is an ArrowException, too
        except (pa.ArrowException, OSError, ValueError) as error:
            raise unreadable(self.path, error) from error


def opened(
    store: Store, paths: Sequence[tuple[str, int | None]], parallel: int
) -> Iterator[CheckpointFile]:
    """Files in their order, each to be entered and left before the next. Small ones are read as a
    whole, with one request each, as many together as may be held at once.

    Args:
        paths: with their sizes in bytes, as far as these are known.
        parallel: so many requests are made at once.
    Raises: CorruptLog.
    """
    left = list(paths)
    while left:
        together: list[tuple[str, int]] = []
        for path, size in left:
            if size is None or sum(known for _, known in together) + size > IN_MEMORY:
                break
            together.append((path, size))
        if not together:
            yield CheckpointFile(store, left.pop(0)[0])
            continue
        del left[: len(together)]
        reads = [partial(_content, store, path, size) for path, size in together]
        contents = side_by_side(reads, parallel)[::-1]
        for path, _ in together:
            yield CheckpointFile(store, path, contents.pop())


def _content(store: Store, path: str, size: int) -> bytes | None:
    """The whole file; None if it has another size. Raises: CorruptLog."""
    try:
        found = store.get_range(path, 0, size + 1)
    except ObjectNotFound as error:
        raise _absent(path) from error
    return found if len(found) == size else None


def _present(batch: pa.RecordBatch) -> Any:
    values = batch.column(0)
    return values.filter(values.is_valid()) if values.null_count else values


def unreadable(path: str, error: Exception) -> CorruptLog:
    """The error of a checkpoint that its format forbids."""
    return corrupt(path, f"{type(error).__name__}: {error}"[:300], "a whole Parquet or JSON file")


def _absent(path: str) -> CorruptLog:
    return corrupt(path, "no such file", "the file that the log names")


def corrupt(path: str, found: str, expected: str) -> CorruptLog:
    """The error of a checkpoint that cannot be used."""
    return CorruptLog(
        "the checkpoint cannot be read",
        resource=path,
        found=found,
        expected=expected,
        remedy="Delete the checkpoint if all commits before it exist; otherwise restore it from "
        "a backup",
    )


# Reading checkpoints: classic, multi-part and V2 with sidecars (protocol, "Checkpoints").
#
# The file actions stay in Arrow; only the few other actions become Python values. A checkpoint
# that cannot be read raises `CorruptLog`: `tandem.delta.log.load` then looks for an older one.


_SMALL = ("protocol", "metaData", "txn", "domainMetadata", "sidecar")
_FEW = 4_096
"""So many rows become Python objects at once: other threads run in between."""
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


_Sidecar = tuple[str, int | None]
"""Its path in the store, and its size in bytes if the log says it."""


@dataclass(frozen=True, slots=True)
class CheckpointContent:
    """A checkpoint's state: `files` as in `tandem.delta.log.files`, everything else as a `Replay`
    without files."""

    files: pa.Table
    state: Replay


def read(store: Store, checkpoint: Checkpoint, *, parallel: int = 1) -> CheckpointContent:
    """The content of a complete checkpoint.

    Args:
        parallel: so many requests are made at once.
    Raises: CorruptLog, AccessDenied, StorageError, MemoryError.
    """
    actions: list[Action] = []
    sidecars: list[_Sidecar] = []
    tables: list[pa.Table] = []
    for path in _json_tops(checkpoint):
        found, inline, beside = _read_json_top(store, path)
        tables.append(files.from_adds(inline))
        actions += found
        sidecars += beside
    for top in opened(store, _parquet_tops(checkpoint), parallel):
        with top as file:
            found, beside = _read_small(file)
            tables.extend(_read_adds(file))
        actions += found
        sidecars += beside
    for sidecar in opened(store, sidecars, parallel):
        with sidecar as file:
            tables.extend(_read_adds(file))
    state = fold_actions(EMPTY_REPLAY, actions)
    if state.protocol is None or state.metadata is None:
        raise corrupt(
            checkpoint.files[0].path,
            "no metaData" if state.metadata is None else "no protocol",
            "a checkpoint has both",
        )
    return CheckpointContent(files.combine(tables or [files.EMPTY]), state)


def read_removes(
    store: Store, checkpoint: Checkpoint, *, parallel: int = 1
) -> Iterator[RemoveFile]:
    """The tombstones of a checkpoint, for writing the next one. Arguments and errors: as of
    `read`."""
    for path in _json_tops(checkpoint):
        for item in _json_actions(store, path):
            if isinstance(item, RemoveFile):
                yield item
    paths = [*_parquet_tops(checkpoint), *_sidecars(store, checkpoint, parallel)]
    for each in opened(store, paths, parallel):
        with each as file:
            for body in _bodies(file, "remove"):
                action = codec.decode_action("remove", body, path=file.path)
                if isinstance(action, RemoveFile):
                    yield action


def sidecar_paths(store: Store, checkpoint: Checkpoint) -> list[str]:
    """The sidecars that a checkpoint refers to, as paths in the store. Raises: as `read`."""
    return [path for path, _ in _sidecars(store, checkpoint, 1)]


def _sidecars(store: Store, checkpoint: Checkpoint, parallel: int) -> list[_Sidecar]:
    found: list[_Sidecar] = []
    for path in _json_tops(checkpoint):
        found += _read_json_top(store, path)[2]
    for top in opened(store, _parquet_tops(checkpoint), parallel):
        with top as file:
            found += _read_small(file)[1]
    return found


def _json_tops(checkpoint: Checkpoint) -> list[str]:
    return [meta.path for meta in checkpoint.files if meta.path.endswith(".json")]


def _parquet_tops(checkpoint: Checkpoint) -> list[tuple[str, int]]:
    files_ = (meta for meta in checkpoint.files if not meta.path.endswith(".json"))
    return [(meta.path, meta.size) for meta in files_]


def _read_small(file: CheckpointFile) -> tuple[list[Action], list[_Sidecar]]:
    actions: list[Action] = []
    sidecars: list[_Sidecar] = []
    for kind in _SMALL:
        for body in _bodies(file, kind):
            if kind == "sidecar":
                sidecars.append(_sidecar(body))
                continue
            action = codec.decode_action(kind, body, path=file.path)
            if action is not None:
                actions.append(action)
    return actions, sidecars


def _bodies(file: CheckpointFile, kind: str) -> Iterator[Json]:
    """The values of a column as Python objects."""
    for rows in file.column(kind):
        for start in range(0, len(rows), _FEW):
            try:
                bodies = rows.slice(start, _FEW).to_pylist(maps_as_pydicts="strict")
            except (
                KeyError,
                ValueError,
            ) as error:  # a key that comes twice, bytes that are no text
                raise unreadable(file.path, error) from error
            yield from bodies


def _read_adds(file: CheckpointFile) -> list[pa.Table]:
    if "add" not in file.schema.names:
        return []
    present = {f.name for f in file.schema.field("add").type}
    leaves = [field for field in _ADD_FIELDS.values() if field in present]
    parsed = [n for n in ("stats_parsed", "partitionValues_parsed") if n in present]
    # The parsed forms repeat the others and are several times their size in memory: they
    # are read only where a file lacks the plain ones.
    plain = {"stats_parsed": "stats", "partitionValues_parsed": "partitionValues"}
    absent = [n for n in parsed if plain[n] not in present]
    try:
        tables = _tables(file, leaves + absent)
        lacking = sum(t["stats"].null_count for t in tables)
        if lacking and "stats_parsed" in present and "stats_parsed" not in absent:
            absent.append("stats_parsed")
            tables = _tables(file, leaves + absent)
    except MemoryError:
        raise
    except (pa.ArrowException, KeyError) as error:
        raise unreadable(file.path, error) from error
    return tables


def _tables(file: CheckpointFile, leaves: Sequence[str]) -> list[pa.Table]:
    return [_to_table(rows, file.moments) for rows in file.column("add", leaves)]


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
    columns["path"], columns["extra"] = files.identities(columns["path"])
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
    # By position: Arrow takes a name that begins with a dot for a path.
    texts = [partition_texts(pc.struct_field(parsed, [at])) for at in range(len(names))]
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
        raise corrupt(path, "no such file", "the file that was listed") from error
    except UnicodeDecodeError as error:
        raise unreadable(path, error) from error
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


def _read_json_top(store: Store, path: str) -> tuple[list[Action], list[AddFile], list[_Sidecar]]:
    actions: list[Action] = []
    adds: list[AddFile] = []
    sidecars: list[_Sidecar] = []
    for item in _json_actions(store, path):
        if isinstance(item, dict):
            sidecars.append(_sidecar(item))
        elif isinstance(item, AddFile):
            adds.append(item)
        elif not isinstance(item, RemoveFile):
            actions.append(item)
    return actions, adds, sidecars


def _sidecar(body: Json) -> _Sidecar:
    # Sidecars are always in the table's own folder; some writers log more than the name.
    path = f"{listing.SIDECARS}/{unquote(str(body['path'])).rsplit('/', 1)[-1]}"
    size = body.get("sizeInBytes")
    return path, size if isinstance(size, int) and size >= 0 else None
