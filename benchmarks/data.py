"""Tables for measurements, generated from a seed: the same content on every machine."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from urllib.parse import unquote, urlparse

import duckdb

LINEITEM = """
SELECT (i // 4 + 1)::BIGINT AS l_orderkey,
       (h % 400000 + 1)::BIGINT AS l_partkey,
       ((h // 7) % 20000 + 1)::BIGINT AS l_suppkey,
       (i % 4 + 1)::INTEGER AS l_linenumber,
       ((h // 11) % 50 + 1)::DECIMAL(15, 2) AS l_quantity,
       (((h // 11) % 50 + 1) * (90000 + (h // 13) % 110000) / 100)::DECIMAL(15, 2)
           AS l_extendedprice,
       ((h // 17) % 11 / 100)::DECIMAL(15, 2) AS l_discount,
       ((h // 19) % 9 / 100)::DECIMAL(15, 2) AS l_tax,
       ['A', 'N', 'R'][((h // 23) % 3 + 1)::INTEGER] AS l_returnflag,
       ['F', 'O'][((h // 29) % 2 + 1)::INTEGER] AS l_linestatus,
       DATE '1992-01-02' + ((h // 31) % 2526)::INTEGER AS l_shipdate,
       DATE '1992-01-31' + ((h // 37) % 2466)::INTEGER AS l_commitdate,
       DATE '1992-01-05' + ((h // 41) % 2553)::INTEGER AS l_receiptdate,
       ['COLLECT COD', 'DELIVER IN PERSON', 'NONE', 'TAKE BACK RETURN']
           [((h // 43) % 4 + 1)::INTEGER] AS l_shipinstruct,
       ['AIR', 'FOB', 'MAIL', 'RAIL', 'REG AIR', 'SHIP', 'TRUCK'][((h // 47) % 7 + 1)::INTEGER]
           AS l_shipmode,
       words[(h % 50 + 1)::INTEGER] || ' ' || words[((h // 50) % 50 + 1)::INTEGER] || ' ' ||
       words[((h // 2500) % 50 + 1)::INTEGER] || ' ' ||
       left(words[((h // 125000) % 50 + 1)::INTEGER], (h % 9)::INTEGER) AS l_comment
FROM (SELECT i, hash(i + {seed}) % 9007199254740881 AS h FROM range({first}, {last}) t(i)),
     (SELECT list_transform(range(50), lambda n: left(md5((n * 7919)::VARCHAR), 3 + n % 7))
             AS words)
"""
"""Like TPC-H's lineitem: its 16 columns, their types and roughly their numbers of values."""

CHECKPOINT = """
SELECT NULL::STRUCT(path VARCHAR, "partitionValues" MAP(VARCHAR, VARCHAR), size BIGINT,
        "modificationTime" BIGINT, "dataChange" BOOLEAN, stats VARCHAR) AS add,
       {{'id': '6f1c3c6e-5a50-4b3c-9a0e-0d7a5f6f2b11', 'name': NULL::VARCHAR,
         'description': NULL::VARCHAR,
         'format': {{'provider': 'parquet', 'options': MAP {{}}::MAP(VARCHAR, VARCHAR)}},
         'schemaString': '{schema}', 'partitionColumns': ['day'],
         'createdTime': 1700000000000::BIGINT,
         'configuration': MAP {{}}::MAP(VARCHAR, VARCHAR)}} AS "metaData",
       NULL::STRUCT("minReaderVersion" INTEGER, "minWriterVersion" INTEGER) AS protocol
UNION ALL BY NAME
SELECT {{'minReaderVersion': 1::INTEGER, 'minWriterVersion': 2::INTEGER}} AS protocol
UNION ALL BY NAME
SELECT {{'path': 'day=' || day || '/part-' || lpad((i % 200)::VARCHAR, 5, '0') || '-'
                 || uuid || '-c000.snappy.parquet',
         'partitionValues': MAP {{'day': day}},
         'size': 1000000 + (hash(i) % 5000000)::BIGINT,
         'modificationTime': 1700000000000::BIGINT + i,
         'dataChange': false,
         'stats': '{{"numRecords":' || (1000 + hash(i) % 9000) ||
            ',"minValues":{{"id":' || (i * 10000) || ',"amount":' || (hash(i) % 1000) / 100 ||
            ',"name":"' || left(uuid, 12) || '"}},"maxValues":{{"id":' || (i * 10000 + 9999) ||
            ',"amount":' || 1000 + (hash(i) % 1000) / 100 || ',"name":"z' || left(uuid, 12) ||
            '"}},"nullCount":{{"id":0,"amount":' || hash(i) % 7 || ',"name":0}}}}'}} AS add
FROM (SELECT i, strftime(DATE '2020-01-01' + (i // 1000)::INTEGER, '%Y-%m-%d') AS day,
             left(h, 8) || '-' || h[9:12] || '-' || h[13:16] || '-' || h[17:20] || '-' || h[21:32]
                 AS uuid
      FROM (SELECT i, md5(i::VARCHAR) AS h FROM range({files}) t(i)))
"""


def query(text: str) -> duckdb.DuckDBPyRelation:
    """The rows of a SELECT."""
    found = duckdb.sql(text)
    assert found is not None  # only statements without rows give None
    return found


def write_checkpoint(root: Path, files: int) -> Path:
    """A table of `files` files that exist only in the log: one checkpoint, like a large table's
    after log clean-up. Partitioned by day, statistics of three columns. Returns the file."""
    log = root / "_delta_log"
    log.mkdir(parents=True)
    columns = {"id": "long", "amount": "double", "name": "string", "day": "string"}
    schema = json.dumps(
        {
            "type": "struct",
            "fields": [
                {"name": name, "type": type_, "nullable": True, "metadata": {}}
                for name, type_ in columns.items()
            ],
        }
    )
    target = log / f"{10:020d}.checkpoint.parquet"
    duckdb.sql(
        f"COPY ({CHECKPOINT.format(schema=schema, files=files)}) TO '{target}' "
        "(FORMAT parquet, COMPRESSION snappy)"
    )
    info = {"commitInfo": {"timestamp": 1700000000000, "operation": "WRITE"}}
    (log / f"{10:020d}.json").write_text(json.dumps(info) + "\n")
    hint = {"version": 10, "size": files + 2, "sizeInBytes": target.stat().st_size}
    (log / "_last_checkpoint").write_text(json.dumps(hint))
    return target


SIX_COLUMNS = (
    "(l_orderkey - 1) * 4 + l_linenumber - 1 AS l_id, l_partkey, l_extendedprice, l_shipdate, "
    "l_shipmode, l_comment"
)
"""Of lineitem: a key, a number, a decimal, a date and two texts."""


def write_lineitem(
    root: Path,
    *,
    files: int,
    rows: int,
    seed: int = 7,
    columns: str = "*",
    vectors: bool = True,
) -> None:
    """A Delta table of `files` appends by deltalake of `rows` rows each; deletion vectors are on
    unless `vectors` is False."""
    from deltalake import WriterProperties, write_deltalake

    enabled = {"delta.enableDeletionVectors": "true"} if vectors else None
    for index in range(files):
        part = lineitem(index * rows, (index + 1) * rows, seed=seed, columns=columns)
        write_deltalake(
            root.as_uri(),
            query(part).to_arrow_table(),
            mode="append",
            writer_properties=WriterProperties(compression="ZSTD", compression_level=1),
            configuration=enabled if index == 0 else None,
        )


def lineitem(first: int, last: int, *, seed: int = 7, columns: str = "*") -> str:
    """The SELECT of these rows of lineitem."""
    return f"SELECT {columns} FROM ({LINEITEM.format(seed=seed, first=first, last=last)})"


def write_small_files(root: Path, *, files: int, rows: int) -> None:
    """The same in one commit of `files` files, six columns, written by DuckDB."""
    from deltalake import convert_to_deltalake

    root.mkdir()
    for index in range(files):
        part = lineitem(index * rows, (index + 1) * rows, columns=SIX_COLUMNS)
        duckdb.sql(
            f"COPY ({part}) TO '{root}/part-{index:05}.parquet' "
            "(FORMAT parquet, COMPRESSION zstd, COMPRESSION_LEVEL 1)"
        )
    convert_to_deltalake(root, configuration={"delta.enableDeletionVectors": "true"})


def copy_table(source: Path, target: Path) -> Path:
    """A table with a separate log; data files never change, so they are linked."""
    shutil.rmtree(target, ignore_errors=True)

    def link(origin: str, copy: str) -> str:
        if "_delta_log" in Path(origin).parts:
            return str(shutil.copy2(origin, copy))
        os.link(origin, copy)
        return copy

    shutil.copytree(source, target, copy_function=link)
    return target


def data_files(root: Path) -> list[Path]:
    """The data files of the latest version, by deltalake."""
    from deltalake import DeltaTable

    return sorted(Path(unquote(urlparse(u).path)) for u in DeltaTable(root.as_uri()).file_uris())


def checksum(files: list[Path], *, without: str = "") -> tuple[int, str]:
    """(rows, a sum over the hashes of all rows), by DuckDB: independent of their order. `without`
    is a condition of rows that are left out."""
    names = ", ".join(f"'{file}'" for file in files)
    where = f" WHERE NOT ({without})" if without else ""
    relation = query(
        f"SELECT count(*), sum(hash(t)::HUGEINT) FROM read_parquet([{names}]) t{where}"
    )
    rows, total = relation.fetchall()[0]
    return int(rows), str(total)
