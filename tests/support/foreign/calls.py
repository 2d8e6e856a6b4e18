"""The calls of foreign engines that a test may request: `DeltalakeCalls`, `SparkCalls`,
`DuckdbCalls`.

Every method takes and gives JSON, and moments in UTC, so that a test may call it here or in
another process (`support.foreign.process`). It knows nothing of Tandem and must not import it: a
foreign writer sees the files of a table and nothing else.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import SparkSession

Json = Any
Row = dict[str, Any]
GATE_S = 100
"""How long a statement stands before its gate at most, in seconds."""


class Refused(Exception):
    """A foreign engine refuses, or fails: `name` says why in a word, as the engine does."""

    def __init__(self, name: str, message: str = "") -> None:
        super().__init__(name, message)
        self.name = name
        self.message = message

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"


class DeltalakeCalls:
    """Tables are kept open under a name, at the version that they had then: what is done with
    one has begun at that version."""

    def __init__(self) -> None:
        self._tables: dict[str, DeltaTable] = {}

    def open(self, table: str, location: str, version: int | None = None) -> None:
        from deltalake import DeltaTable

        self._tables[table] = DeltaTable(location, version=version)

    def close(self, table: str) -> None:
        del self._tables[table]

    def act(self, table: str, what: str, arguments: Json) -> Json:
        """`what` is a method below. Raises: Refused."""
        from deltalake.exceptions import DeltaError

        try:
            return getattr(self, f"act_{what}")(self._tables[table], **arguments)
        except (DeltaError, OSError) as error:
            raise Refused(type(error).__name__, str(error)) from error

    def rows(self, location: str, columns: list[str], version: int | None = None) -> list[Row]:
        """By `scan()`, the reader of deltalake that honours deletion vectors."""
        import pyarrow as pa
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            found = pa.table(DeltaTable(location, version=version).scan())
        except (DeltaError, OSError) as error:
            raise Refused(type(error).__name__, str(error)) from error
        listed: list[Row] = found.select(columns).to_pylist()
        return listed

    # What can be done with a table

    def act_append(self, table: DeltaTable, rows: list[Row], merge_schema: bool = False) -> None:
        from deltalake import write_deltalake

        write_deltalake(
            table, _arrow(rows), mode="append", schema_mode="merge" if merge_schema else None
        )

    def act_overwrite(self, table: DeltaTable, rows: list[Row], where: str | None = None) -> None:
        from deltalake import write_deltalake

        write_deltalake(table, _arrow(rows), mode="overwrite", predicate=where)

    def act_delete(self, table: DeltaTable, where: str | None = None) -> None:
        table.delete(where)

    def act_update(self, table: DeltaTable, where: str, set_: dict[str, str]) -> None:
        table.update(updates=set_, predicate=where)

    def act_merge(self, table: DeltaTable, rows: list[Row]) -> None:
        """By id: all that is there is updated, all else inserted."""
        merger = table.merge(_arrow(rows), "t.id = s.id", source_alias="s", target_alias="t")
        merger.when_matched_update_all().when_not_matched_insert_all().execute()

    def act_compact(self, table: DeltaTable) -> None:
        table.optimize.compact()

    def act_z_order(self, table: DeltaTable, columns: list[str]) -> None:
        table.optimize.z_order(columns)

    def act_restore(self, table: DeltaTable, version: int) -> None:
        table.restore(version)

    def act_vacuum(self, table: DeltaTable, hours: int, full: bool = False) -> None:
        table.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=full)

    def act_checkpoint(self, table: DeltaTable) -> None:
        table.create_checkpoint()

    def act_clean_log(self, table: DeltaTable) -> None:
        table.cleanup_metadata()

    def act_set_properties(self, table: DeltaTable, properties: dict[str, str]) -> None:
        table.alter.set_table_properties(properties)

    def act_add_feature(self, table: DeltaTable, name: str) -> None:
        from deltalake import TableFeatures

        table.alter.add_feature(getattr(TableFeatures, name), allow_protocol_versions_increase=True)

    def act_add_column(self, table: DeltaTable, name: str, type_: str) -> None:
        from deltalake import Field
        from deltalake.schema import PrimitiveType

        table.alter.add_columns(Field(name, PrimitiveType(type_)))

    def act_add_constraint(self, table: DeltaTable, name: str, expression: str) -> None:
        table.alter.add_constraint({name: expression})


def _arrow(rows: list[Row]) -> Any:
    import pyarrow as pa

    return pa.Table.from_pylist(rows)


class SparkCalls:
    """Spark + Delta. A statement is begun where its condition calls `gate(id, 'PATH')`: then
    its transaction is open, and it reads on when `let_go` is called."""

    def __init__(self, spark: SparkSession) -> None:
        from pyspark.sql.types import BooleanType

        self._spark = spark
        self._begun: dict[str, tuple[threading.Thread, Path, list[Refused]]] = {}
        spark.udf.register("gate", _gate(), BooleanType())

    def sql(self, text: str) -> None:
        """Raises: Refused."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        try:
            self._spark.sql(text)
        except (PySparkException, Py4JJavaError) as error:
            raise _refused(error) from error

    def rows(self, location: str, columns: list[str], version: int | None = None) -> list[Row]:
        at = "" if version is None else f" VERSION AS OF {version}"
        found = self._spark.sql(f"SELECT {', '.join(columns)} FROM delta.`{location}`{at}")
        listed: list[Row] = found.toArrow().to_pylist()
        return listed

    def row_ids(self, location: str) -> list[Row]:
        """The row id and the commit version of each row."""
        found = self._spark.sql(
            "SELECT _metadata.row_id AS row_id, _metadata.row_commit_version AS version "
            f"FROM delta.`{location}`"
        )
        listed: list[Row] = found.toArrow().to_pylist()
        return listed

    def query(self, text: str) -> list[Row]:
        """Raises: Refused."""
        from py4j.protocol import Py4JJavaError
        from pyspark.errors import PySparkException

        try:
            listed: list[Row] = self._spark.sql(text).toArrow().to_pylist()
        except (PySparkException, Py4JJavaError) as error:
            raise _refused(error) from error
        return listed

    def begin(self, statement: str, text: str, gate: str) -> None:
        """Start a statement whose condition calls the gate; come back when it stands there."""
        refused: list[Refused] = []

        def run() -> None:
            try:
                self.sql(text)
            except Refused as error:
                refused.append(error)

        thread = threading.Thread(target=run, name=statement, daemon=True)
        path = Path(gate)
        self._begun[statement] = thread, path, refused
        thread.start()
        stands = _wait_for(lambda: path.with_suffix(".begun").exists() or not thread.is_alive())
        if not stands or not thread.is_alive():
            raise AssertionError(f"{text} did not come to its gate: {refused}")

    def let_go(self, statement: str) -> None:
        """Open the gate, and wait for the statement's end. Raises: Refused."""
        thread, path, refused = self._begun.pop(statement)
        path.with_suffix(".open").touch()
        thread.join(GATE_S)
        assert not thread.is_alive(), statement
        if refused:
            raise refused[0]


class DuckdbCalls:
    """DuckDB, with the catalog `unity` of a Unity Catalog. Its extensions are packages, each with a
    file of the version that it belongs to. Each statement has a database of its own:
    an attached catalog remembers the versions of tables, and after a commit that was refused
    it cannot be detached."""

    def __init__(self, url: str) -> None:
        self._begin = [
            f"LOAD '{_extension(each)}'" for each in ("httpfs", "delta", "unity_catalog")
        ]
        self._begin += [
            f"CREATE SECRET (TYPE unity_catalog, TOKEN 'of-duckdb', ENDPOINT '{url}')",
            "ATTACH 'unity' AS unity (TYPE unity_catalog, DEFAULT_SCHEMA 'lake')",
        ]

    def sql(self, text: str) -> None:
        """Raises: Refused."""
        self.query(text)

    def query(self, text: str) -> list[Row]:
        """Raises: Refused."""
        import duckdb

        with duckdb.connect() as connection:
            for statement in self._begin:
                connection.execute(statement)
            try:
                found = connection.execute(text)
                names = [each[0] for each in found.description]
                return [dict(zip(names, row, strict=True)) for row in found.fetchall()]
            except duckdb.Error as error:
                raise Refused(type(error).__name__, str(error)[:2000]) from error


def _extension(name: str) -> Path:
    package = import_module(f"duckdb_extension_{name}").__file__
    assert package is not None
    [file] = Path(package).parent.glob("extensions/*/*.duckdb_extension")
    return file


def _gate() -> Callable[[int, str], bool]:
    """The gate: true, once it is open. It runs in Python workers of Spark, which cannot import
    this module: so it is sent as a whole, with nothing of ours in it."""

    def gate(_value: int, path: str, patience_s: int = GATE_S) -> bool:
        import pathlib
        import threading

        is_open = pathlib.Path(path).with_suffix(".open")
        if is_open.exists():
            return True
        pathlib.Path(path).with_suffix(".begun").touch()
        step = threading.Event()
        for _ in range(patience_s * 100):
            if is_open.exists():
                return True
            step.wait(0.01)
        raise TimeoutError(path)

    return gate


def _wait_for(condition: Callable[[], bool]) -> bool:
    """Look every few milliseconds, for `GATE_S` at most."""
    step = threading.Event()
    for _ in range(GATE_S * 100):
        if condition():
            return True
        step.wait(0.01)
    return False


def _refused(error: Any) -> Refused:
    text = str(error)
    found = re.search(r"\[(DELTA_[A-Z_]+|[A-Z_]{8,})[.\]]", text)
    java = re.search(r"(\w+Exception)\b", text)
    name = found.group(1) if found else java.group(1) if java else type(error).__name__
    return Refused(name, text[:2000])
