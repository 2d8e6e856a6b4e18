"""The tables in which keys are looked up: their logs are written directly, by another writer's
rules."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

PER_FILE = 1_000
"""Rows of a file of a table for Spark."""
GROUP_ROWS = 50_000
FALSE_POSITIVES = 0.001
DAYS = 12
SEED = 20


def name_of(number: int) -> str:
    return f"part-{number:06d}-c1b2c3d4-e5f6-7890-abcd-ef0123456789-c000.snappy.parquet"


def write_log(root: Path, columns: Mapping[str, str], adds: Iterable[Any]) -> None:
    """A commit of files and its checkpoint."""
    from tandem.delta.actions import Metadata, Protocol
    from tandem.delta.log import codec
    from tandem.delta.log.delta_log import DeltaLog
    from tandem.delta.log.maintenance import write_checkpoint
    from tandem.delta.log.snapshot import commit_info
    from tandem.storage import open_store

    fields = [
        {"name": name, "type": type_, "nullable": True, "metadata": {}}
        for name, type_ in columns.items()
    ]
    metadata = Metadata(root.name, json.dumps({"type": "struct", "fields": fields}), (), {})
    info = commit_info("WRITE", {}, now_ms=1, previous=None, blind_append=True)
    path = root / "_delta_log" / f"{0:020d}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(codec.encode_commit([info, Protocol(1, 2), metadata, *adds]))
    log = DeltaLog(open_store(root.as_uri()))
    write_checkpoint(log, log.snapshot(), now_ms=2)


def value_of(key: int) -> int:
    """The value beside a key, in a table for Spark."""
    return key * 7 % 1_000_003


def looked_up(files: int, times: int) -> list[int]:
    """Keys, each in another file if there are as many."""
    return [(n + 1) * 7_919 % files * PER_FILE + (n * 37) % PER_FILE for n in range(times)]


def write_clustered(root: Path, files: int, keys: Sequence[int]) -> None:
    """A table of (id, value) in the order of `id`. Of its files only those exist that have one of
    the keys: no reader opens another one."""
    from tandem.delta.actions import AddFile

    root.mkdir(parents=True)
    size = 0
    for number in sorted({key // PER_FILE for key in keys}):
        ids = np.arange(number * PER_FILE, (number + 1) * PER_FILE, dtype=np.int64)
        path = root / name_of(number)
        # One length of all of them, since the log names it: fixed-width values, not compressed.
        pq.write_table(
            pa.table({"id": ids, "value": ids * 7 % 1_000_003}),
            path,
            use_dictionary=False,
            compression="none",
        )
        if size not in (0, path.stat().st_size):
            raise ValueError(f"{path.name} has {path.stat().st_size} bytes, another one {size}")
        size = path.stat().st_size
    adds = (
        AddFile(name_of(n), {}, size, 1, True, json.dumps(_clustered_stats(n)))
        for n in range(files)
    )
    write_log(root, {"id": "long", "value": "long"}, adds)


def _clustered_stats(number: int) -> dict[str, Any]:
    low = number * PER_FILE
    return {
        "numRecords": PER_FILE,
        "minValues": {"id": low},
        "maxValues": {"id": low + PER_FILE - 1},
        "nullCount": {"id": 0, "value": 0},
    }


def write_unclustered(root: Path, files: int, per_file: int, samples: int) -> dict[str, Any]:
    """A table of (key, day, amount, quantity): random keys in every file, days in their order. Each
    row group has a bloom filter of its keys, and facts of the row groups lie beside the table, as
    jobs of Tandem leave them.

    Returns: rows, bytes, and `samples` rows to look up.
    """
    from tandem.delta.actions import AddFile

    root.mkdir(parents=True)
    random = np.random.default_rng(SEED)
    adds, found, size = [], [], 0
    for number in range(files):
        rows = pa.table(
            {
                "key": random.integers(0, 1 << 62, per_file),
                "day": np.full(per_file, number * DAYS // files, np.int32),
                "amount": random.random(per_file),
                "quantity": random.integers(0, 1_000, per_file, dtype=np.int32),
            }
        )
        path = root / name_of(number)
        pq.write_table(
            rows,
            path,
            row_group_size=GROUP_ROWS,
            use_dictionary=["day"],
            bloom_filter_options={"key": {"ndv": GROUP_ROWS, "fpp": FALSE_POSITIVES}},
        )
        size += path.stat().st_size
        stats = {
            "numRecords": per_file,
            "minValues": {name: _least(rows[name]) for name in ("key", "day", "quantity")},
            "maxValues": {name: _most(rows[name]) for name in ("key", "day", "quantity")},
            "nullCount": dict.fromkeys(rows.column_names, 0),
        }
        adds.append(
            AddFile(path.name, {}, path.stat().st_size, 1, True, json.dumps(stats))
        )  # fmt: skip
        if number * samples // files != (number + 1) * samples // files:
            found.append(rows.slice(number * 31 % per_file, 1).to_pylist()[0])
    columns = {"key": "long", "day": "integer", "amount": "double", "quantity": "integer"}
    write_log(root, columns, adds)
    _store_facts(root)
    return {"rows": files * per_file, "bytes": size, "samples": found}


def _least(column: pa.ChunkedArray) -> int:
    return int(column.to_numpy().min())


def _most(column: pa.ChunkedArray) -> int:
    return int(column.to_numpy().max())


def _store_facts(root: Path) -> None:
    from tandem.delta.log.delta_log import DeltaLog
    from tandem.index.facts.cache import FactsCache
    from tandem.index.facts.files import WORTH_STORED
    from tandem.storage import open_store

    store = open_store(root.as_uri())
    snapshot = DeltaLog(store).snapshot()
    rows = np.full(snapshot.files.num_rows, -1, np.int64)
    never: Callable[[], bool] = lambda: False  # noqa: E731
    FactsCache(store, worth_bytes=WORTH_STORED).warm(
        snapshot.files, rows, never, table_id=snapshot.metadata.id
    )
