"""Hand-built Delta logs: tables as lists of JSON actions, and the slow obvious way to read them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from support.lake.memory_store import MemoryStore
from tandem.storage import Store

Json = dict[str, Any]

SCHEMA_STRING = json.dumps(
    {
        "type": "struct",
        "fields": [
            {"name": "id", "type": "long", "nullable": True, "metadata": {}},
            {"name": "name", "type": "string", "nullable": True, "metadata": {}},
        ],
    }
)


def protocol(reader: int = 1, writer: int = 2, **features: Sequence[str]) -> Json:
    body: Json = {"minReaderVersion": reader, "minWriterVersion": writer}
    return {"protocol": body | {k: list(v) for k, v in features.items()}}


def metadata(configuration: Mapping[str, str] | None = None, **fields: Any) -> Json:
    body: Json = {
        "id": "11111111-2222-3333-4444-555555555555",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": SCHEMA_STRING,
        "partitionColumns": [],
        "configuration": dict(configuration or {}),
    }
    return {"metaData": body | fields}


def add(path: str, dv: str | None = None, **fields: Any) -> Json:
    body: Json = {
        "path": path,
        "partitionValues": {},
        "size": 10,
        "modificationTime": 1,
        "dataChange": True,
    }
    if dv is not None:
        body["deletionVector"] = vector(dv)
        body["stats"] = '{"numRecords":10,"tightBounds":false}'
    return {"add": body | fields}


def remove(path: str, dv: str | None = None, **fields: Any) -> Json:
    body: Json = {"path": path, "deletionTimestamp": 1, "dataChange": True}
    if dv is not None:
        body["deletionVector"] = vector(dv)
    return {"remove": body | fields}


def vector(name: str) -> Json:
    """A descriptor of which only the identity matters."""
    return {"storageType": "u", "pathOrInlineDv": name, "offset": 1, "sizeInBytes": 3,
            "cardinality": 1}  # fmt: skip


def info(**fields: Any) -> Json:
    return {"commitInfo": {"timestamp": 1, "operation": "WRITE"} | fields}


def commit_name(version: int) -> str:
    return f"_delta_log/{version:020d}.json"


def lines(actions: Sequence[Json]) -> bytes:
    return "".join(json.dumps(a) + "\n" for a in actions).encode()


def write_log(store: Store, commits: Sequence[Sequence[Json]], *, first: int = 0) -> None:
    """The commits as JSON files from version `first`."""
    for offset, actions in enumerate(commits):
        store.put(commit_name(first + offset), lines(actions))


def memory_log(*commits: Sequence[Json], configuration: Mapping[str, str] | None = None,
               clock: Any = None) -> MemoryStore:  # fmt: skip
    """A table in memory: version 0 makes it, the commits follow as versions 1, 2, …"""
    store = MemoryStore(clock=clock)
    write_log(store, [[info(), protocol(), metadata(configuration)], *commits])
    return store


def live_files(commits: Sequence[Sequence[Json]]) -> dict[tuple[str, str | None], Json]:
    """The working set by the protocol's words: "keep only the newest reference for each logical
    file". Slow and obvious."""
    references: list[tuple[tuple[str, str | None], str, Json]] = []
    for actions in commits:
        for action in actions:
            for kind in ("add", "remove"):
                if kind in action:
                    body = action[kind]
                    dv = body.get("deletionVector")
                    dv_id = None
                    if dv:
                        at = f"@{dv['offset']}" if "offset" in dv else ""
                        dv_id = f"{dv['storageType']}{dv['pathOrInlineDv']}{at}"
                    references.append(((body["path"], dv_id), kind, body))
    live = {}
    for index, (key, kind, body) in enumerate(references):
        newer = any(other == key for other, _, _ in references[index + 1 :])
        if not newer and kind == "add":
            live[key] = body
    return live


# Checkpoints by hand, independent of the product's writer.

_STRINGS = pa.map_(pa.string(), pa.string())
_DV = pa.struct(
    [("storageType", pa.string()), ("pathOrInlineDv", pa.string()), ("offset", pa.int32()),
     ("sizeInBytes", pa.int32()), ("cardinality", pa.int64())]
)  # fmt: skip
COLUMNS: dict[str, pa.StructType] = {
    "protocol": pa.struct(
        [("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32()),
         ("readerFeatures", pa.list_(pa.string())), ("writerFeatures", pa.list_(pa.string()))]
    ),
    "metaData": pa.struct(
        [("id", pa.string()), ("schemaString", pa.string()),
         ("partitionColumns", pa.list_(pa.string())), ("configuration", _STRINGS)]
    ),
    "txn": pa.struct([("appId", pa.string()), ("version", pa.int64())]),
    "add": pa.struct(
        [("path", pa.string()), ("partitionValues", _STRINGS), ("size", pa.int64()),
         ("modificationTime", pa.int64()), ("dataChange", pa.bool_()), ("stats", pa.string()),
         ("tags", _STRINGS), ("deletionVector", _DV)]
    ),
    "remove": pa.struct(
        [("path", pa.string()), ("deletionTimestamp", pa.int64()), ("dataChange", pa.bool_()),
         ("deletionVector", _DV)]
    ),
    "checkpointMetadata": pa.struct([("version", pa.int64()), ("tags", _STRINGS)]),
    "sidecar": pa.struct(
        [("path", pa.string()), ("sizeInBytes", pa.int64()), ("modificationTime", pa.int64()),
         ("tags", _STRINGS)]
    ),
}  # fmt: skip


def checkpoint_bytes(actions: Sequence[Json], columns: Sequence[str] = tuple(COLUMNS)) -> bytes:
    """A Parquet file with one row for each action."""
    rows = [{k: _shape(v, COLUMNS[k]) for k, v in a.items() if k in columns} for a in actions]
    table = pa.table(
        {name: pa.array([r.get(name) for r in rows], COLUMNS[name]) for name in columns}
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return bytes(sink.getvalue())


def _shape(value: Any, type_: pa.DataType) -> Any:
    if value is None:
        return None
    if pa.types.is_map(type_):
        return list(value.items())
    if pa.types.is_struct(type_):
        return {f.name: _shape(value.get(f.name), f.type) for f in type_}
    return value


def state_actions(commits: Sequence[Sequence[Json]]) -> list[Json]:
    """What a checkpoint after these commits must hold (protocol, metaData, txn, add)."""
    flat = [a for actions in commits for a in actions]
    latest = [[a for a in flat if kind in a][-1] for kind in ("protocol", "metaData")]
    txns = {a["txn"]["appId"]: a for a in flat if "txn" in a}
    return [*latest, *txns.values(), *({"add": b} for b in live_files(commits).values())]
