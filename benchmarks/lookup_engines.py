"""Looking up a key that no bounds exclude, in engines without a JVM, and queries of DuckDB over the
files that the index chooses."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.harness import WrongResult, timed
from benchmarks.lookup_tables import DAYS

Row = dict[str, Any]
COLUMNS = ("key", "day", "amount", "quantity")

MIXED: Mapping[str, tuple[str, str]] = {
    "a key": (
        "SELECT count(*), sum(quantity) FROM {files} WHERE {where}",
        "key = {key}",
    ),
    "twenty keys": (
        "SELECT count(*), sum(quantity) FROM {files} WHERE {where}",
        "key IN ({keys})",
    ),
    "a day": (
        "SELECT count(*), max(amount) FROM {files} WHERE {where}",
        "day = 4",
    ),
    "half of the days, by quantity": (
        "SELECT quantity % 10 AS q, count(*), max(amount) FROM {files} WHERE {where} GROUP BY q "
        "ORDER BY q",
        f"day >= {DAYS // 2}",
    ),
    "a tenth of the rows, in all files": (
        "SELECT day, count(*) FROM {files} WHERE {where} GROUP BY day ORDER BY day",
        "quantity < 100",
    ),
    "all rows, by day": (
        "SELECT day, count(*), sum(quantity) FROM {files} GROUP BY day ORDER BY day",
        "",
    ),
    "the greatest amounts of all rows": (
        "SELECT key, amount FROM {files} ORDER BY amount DESC, key LIMIT 10",
        "",
    ),
    "a join of two days": (
        "SELECT count(*), sum(a.quantity) FROM {files} AS a JOIN (SELECT quantity, min(amount) AS "
        "least FROM {files} WHERE {where} GROUP BY quantity) AS b ON a.quantity = b.quantity AND "
        "a.amount <= b.least WHERE {where}",
        "day IN (1, 9)",
    ),
}
"""Queries of DuckDB, and the condition for which the index chooses files; empty for all files."""


def by_tandem(root: str, samples: list[Row], times: int) -> dict[str, Any]:
    """In a separate process: an index that is held, and Tandem's reader."""
    from tandem.index import Query, open_index

    index = open_index(root)

    def look_up(key: int) -> pa.Table:
        return index.reader(Query(f"key = {key}"), COLUMNS).read_all()

    return _timed(look_up, samples, times) | {"held": index.nbytes}


def by_duckdb(root: str, samples: list[Row], times: int) -> dict[str, Any]:
    """In a separate process. DuckDB uses the bloom filters itself."""
    import duckdb

    engine = duckdb.connect()
    engine.execute("SET threads = 2")
    engine.execute("SET parquet_metadata_cache = true")
    columns = ", ".join(COLUMNS)

    def look_up(key: int) -> pa.Table:
        sql = f"SELECT {columns} FROM read_parquet('{root}/*.parquet') WHERE key = {key}"
        # Of one row, this is the shortest way out of DuckDB.
        rows = engine.execute(sql).fetchall()
        return pa.Table.from_pylist([dict(zip(COLUMNS, row, strict=True)) for row in rows])

    return _timed(look_up, samples, times)


def by_polars(root: str, samples: list[Row], times: int) -> dict[str, Any]:
    """In a separate process."""
    import polars as pl

    def look_up(key: int) -> pa.Table:
        rows = pl.scan_parquet(f"{root}/*.parquet").filter(pl.col("key") == key)
        return rows.select(COLUMNS).collect().to_arrow()

    return _timed(look_up, samples, times)


def by_pyarrow(root: str, samples: list[Row], times: int) -> dict[str, Any]:
    """In a separate process. The dataset, which remembers the footers, is held."""
    import pyarrow.compute as pc
    import pyarrow.dataset as ds

    files = ds.dataset(sorted(str(path) for path in Path(root).glob("*.parquet")))

    def look_up(key: int) -> pa.Table:
        return files.to_table(columns=list(COLUMNS), filter=pc.field("key") == key)

    return _timed(look_up, samples, times)


def _timed(look_up: Callable[[int], pa.Table], samples: list[Row], times: int) -> dict[str, Any]:
    """The seconds of the first lookup, and those of each one after all samples were looked up once.
    Raises: WrongResult."""

    def checked(row: Row) -> float:
        took, found = timed(look_up, row["key"])
        if found.to_pylist() != [row]:
            raise WrongResult(f"{found.to_pylist()} for {row}")
        return took

    first = [checked(row) for row in samples]
    return {
        "first": first[0],
        "seconds": [checked(samples[n % len(samples)]) for n in range(times)],
    }


def from_store(root: str, samples: list[Row]) -> dict[str, Any]:
    """In a separate process: bytes and requests of lookups in the S3 test server, each key in an
    index that holds nothing, and again in one that was asked for the others."""
    from support.lake.distant import Request, at_a_distance
    from support.lake.s3 import start_server
    from tandem.index import Query, open_index

    with start_server() as server, at_a_distance(server) as distance:
        os.environ |= server.environ
        location = server.fresh_location()
        _upload(Path(root), server.open(location))

        def look_up(index: Any, row: Row) -> dict[str, Any]:
            distance.requests.clear()
            found = index.reader(Query(f"key = {row['key']}"), COLUMNS).read_all()
            if found.to_pylist() != [row]:
                raise WrongResult(f"{found.to_pylist()} for {row}")
            requests = list(distance.requests)
            splits = index.splits(Query(f"key = {row['key']}"))
            groups = [
                pq.read_metadata(f"{root}/{path}").num_row_groups if some is None else len(some)
                for path, some in zip(
                    splits.files["path"].to_pylist(), splits.groups.to_pylist(), strict=True
                )
            ]
            data = [each for each in requests if _is_data(each)]
            return {
                "groups": sum(groups),
                "requests": len(data),
                "others": len(requests) - len(data),
                "bytes": sum(each.got for each in data),
                "kinds": sorted(each.text for each in requests)[:20],
            }

        def _is_data(request: Request) -> bool:
            return request.path.endswith(".parquet") and "/_" not in request.path

        options = distance.server.options
        cold = look_up(open_index(location, options), samples[0])
        warm = open_index(location, options)
        look_up(warm, samples[0])
        return {"cold": cold, "warm": [look_up(warm, row) for row in samples]}


def _upload(folder: Path, store: Any) -> None:
    for path in sorted(each for each in folder.rglob("*") if each.is_file()):
        store.put(str(path.relative_to(folder)), path.read_bytes())


def mixed(root: str, samples: list[Row], times: int) -> dict[str, Any]:
    """In a separate process: each query over all files, and over those that the index chooses,
    with the time that this takes; in turns. Raises: WrongResult if they differ."""
    import duckdb

    from tandem.index import Query, open_index

    engine = duckdb.connect()
    engine.execute("SET threads = 2")
    engine.execute("SET parquet_metadata_cache = true")
    index = open_index(root)
    every = f"read_parquet('{root}/*.parquet')"
    keys = ", ".join(str(row["key"]) for row in samples[:20])
    found: dict[str, Any] = {}
    for name, (sql, condition) in MIXED.items():
        where = condition.format(key=samples[0]["key"], keys=keys)

        def without(sql: str = sql, where: str = where) -> list[Any]:
            return engine.execute(sql.format(files=every, where=where)).fetchall()

        def with_index(sql: str = sql, where: str = where) -> list[Any]:
            paths = ", ".join(f"'{root}/{path}'" for path in index.paths(Query(where)))
            chosen = f"read_parquet([{paths}])"
            return engine.execute(sql.format(files=chosen, where=where)).fetchall()

        ways: dict[str, Callable[[], list[Any]]] = {"without": without, "with": with_index}
        if ways["with"]() != (truth := ways["without"]()) or not truth:
            raise WrongResult(f"{name}: {ways['with']()} with the index, {truth} without")
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for turn in range(times):
            # The one that comes second finds the caches as the first one left them.
            for way in list(ways)[:: 1 if turn % 2 else -1]:
                seconds[way].append(timed(ways[way])[0])
        found[name] = seconds | {"files": len(index.paths(Query(where)))}
    return found
