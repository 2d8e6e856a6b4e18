"""Our deletion vectors in real tables: `deltalake` reads what we write, we read the same rows."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyroaring import BitMap64

from support.lake.s3 import S3Server
from support.lake.vectors import encode_inline
from tandem.delta import dv
from tandem.delta.actions import DeletionVector
from tandem.storage import Store, open_store

ROWS = 1000
FOLDER = "_tandem/dv/0123456789abcdef-1"
SETS = [
    BitMap64([0]),
    BitMap64([0, 5, ROWS - 1]),
    BitMap64(range(100, 900)),
    BitMap64(range(0, ROWS, 2)),
    BitMap64(),
]


def create(location: str, storage_options: dict[str, str] | None = None) -> None:
    write_deltalake(
        location,
        pa.table({"id": pa.array(range(ROWS), pa.int64())}),
        configuration={"delta.enableDeletionVectors": "true"},
        storage_options=storage_options,
    )


def descriptor(vector: DeletionVector) -> dict[str, Any]:
    found: dict[str, Any] = {
        "storageType": vector.storage,
        "pathOrInlineDv": vector.path_or_inline,
        "sizeInBytes": vector.size,
        "cardinality": vector.cardinality,
    }
    if vector.offset is not None:
        found["offset"] = vector.offset
    return found


def commit(store: Store, vector: DeletionVector) -> str:
    """Version 1: the table's only file again, with `vector`. Returns the file's path."""
    first = [json.loads(line) for line in store.get(f"_delta_log/{0:020}.json").splitlines()]
    add = next(action["add"] for action in first if "add" in action)
    stats = {**json.loads(add["stats"]), "tightBounds": False}
    remove = {"path": add["path"], "deletionTimestamp": 1, "dataChange": True}
    actions: list[dict[str, Any]] = [
        {"remove": {**remove, "extendedFileMetadata": False}},
        {"add": {**add, "stats": json.dumps(stats), "deletionVector": descriptor(vector)}},
        {"commitInfo": {"timestamp": 1, "operation": "DELETE", "operationParameters": {}}},
    ]
    text = "\n".join(json.dumps(action) for action in actions)
    store.put_if_absent(f"_delta_log/{1:020}.json", text.encode())
    return str(add["path"])


def rows(location: str, storage_options: dict[str, str] | None = None) -> list[int]:
    table = DeltaTable(location, storage_options=storage_options)
    found: list[int] = pa.table(table.scan()).column("id").to_pylist()
    return sorted(found)


def expected(bitmap: BitMap64) -> list[int]:
    return [row for row in range(ROWS) if row not in bitmap]


@pytest.mark.parametrize("bitmap", SETS, ids=len)
@pytest.mark.parametrize("storage", ["i", "u", "u at the root", "p"])
def test_deltalake_hides_the_rows_that_we_delete(
    tmp_path: Path, bitmap: BitMap64, storage: str
) -> None:
    create(str(tmp_path))
    store = open_store(str(tmp_path))
    others = [BitMap64([1]), bitmap, BitMap64([2])]
    vector = encode_inline(bitmap)
    if storage.startswith("u"):
        vector = dv.write_file(store, FOLDER if storage == "u" else "", others)[1]
    elif storage == "p":
        relative = dv.write_file(store, "elsewhere", others)[1]
        url = f"{store.location}/{dv.file_path(relative)}"
        vector = dataclasses.replace(relative, storage="p", path_or_inline=url)
    commit(store, vector)
    assert rows(str(tmp_path)) == expected(bitmap)
    assert dv.load(store, vector) == bitmap


def test_deltalake_reads_our_deletion_vectors_from_s3(s3_server: S3Server) -> None:
    location = s3_server.fresh_location()
    create(location, s3_server.storage_options)
    store = s3_server.open(location)
    vector = dv.write_file(store, FOLDER, [BitMap64([1]), BitMap64(range(10, 500))])[1]
    commit(store, vector)
    assert rows(location, s3_server.storage_options) == expected(BitMap64(range(10, 500)))
    assert dv.load(store, vector) == BitMap64(range(10, 500))


def test_our_reader_and_the_file_agree_with_deltalake(tmp_path: Path) -> None:
    create(str(tmp_path))
    store = open_store(str(tmp_path))
    bitmap = BitMap64(range(3, ROWS, 7))
    path = commit(store, dv.write_file(store, FOLDER, [bitmap])[0])
    with store.open_input(path) as file:
        ids = pq.ParquetFile(file).read().column("id").to_pylist()
    assert [ids[n] for n in range(len(ids)) if n not in bitmap] == rows(str(tmp_path))


def test_deltalakes_delete_and_compact_respect_our_deletion_vectors(tmp_path: Path) -> None:
    create(str(tmp_path))
    store = open_store(str(tmp_path))
    commit(store, dv.write_file(store, FOLDER, [BitMap64(range(500))])[0])
    table = DeltaTable(str(tmp_path))
    table.delete("id >= 900")
    assert rows(str(tmp_path)) == list(range(500, 900))
    DeltaTable(str(tmp_path)).optimize.compact()
    assert rows(str(tmp_path)) == list(range(500, 900))


def test_a_full_vacuum_keeps_our_deletion_vectors(tmp_path: Path) -> None:
    create(str(tmp_path))
    store = open_store(str(tmp_path))
    vector = dv.write_file(store, FOLDER, [BitMap64(range(500))])[0]
    commit(store, vector)
    for parent, _, files in os.walk(tmp_path):
        for name in files:
            os.utime(os.path.join(parent, name), (1, 1))
    DeltaTable(str(tmp_path)).vacuum(
        retention_hours=0, dry_run=False, enforce_retention_duration=False, full=True
    )
    assert dv.load(store, vector) == BitMap64(range(500))
    assert rows(str(tmp_path)) == list(range(500, ROWS))
