"""Changes of lineitem by deltalake. `rewrites` measures them as whole processes, too: this module
imports what they need, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

from deltalake import DeltaTable, WriterProperties

AT, BY = "l_shipdate", "l_partkey"
SOME = "l_id % 100 = 7"
MODE = "CHANGED"

_PROPERTIES = WriterProperties(compression="ZSTD", compression_level=1)


def _z_order(table: DeltaTable, _rows: str) -> None:
    table.optimize.z_order([AT, BY], target_size=128 << 20, writer_properties=_PROPERTIES)


def _update(table: DeltaTable, _rows: str) -> None:
    table.update({"l_shipmode": f"'{MODE}'"}, predicate=SOME, writer_properties=_PROPERTIES)


def _delete(table: DeltaTable, _rows: str) -> None:
    table.delete(SOME, writer_properties=_PROPERTIES)


def _merge(table: DeltaTable, rows: str) -> None:
    import pyarrow.parquet as pq

    table.merge(
        pq.read_table(rows),
        "t.l_id = s.l_id",
        source_alias="s",
        target_alias="t",
        writer_properties=_PROPERTIES,
    ).when_matched_update_all().when_not_matched_insert_all().execute()


CHANGES: dict[str, Callable[[DeltaTable, str], None]] = {
    "z-order": _z_order,
    "update": _update,
    "delete": _delete,
    "merge": _merge,
}


def change(name: str, table: str, rows: str) -> None:
    """Perform one of `CHANGES`; `rows` is the file of the rows to merge."""
    CHANGES[name](DeltaTable(table), rows)
