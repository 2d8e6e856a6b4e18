"""A table at a version as Arrow: exactly the rows that `deltalake` and Spark with Delta return.

Reads the snapshot's files one after the other through the store, masks deleted rows, and adds
partition values and columns that are missing in older files. It evaluates no predicates: a
statement has one meaning, Spark's (`tandem.statements`); callers may pass a filter of their own on
batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from tandem.delta import dv, protocol
from tandem.delta.datafiles.reader import DataFileReader, TableFormat, arrow_schema
from tandem.delta.log.snapshot import Snapshot
from tandem.delta.schema import StructType
from tandem.errors import InvalidSpec, closest_name
from tandem.storage.store import Store

RowFilter = Callable[[pa.RecordBatch], pa.RecordBatch]


def scan(
    snapshot: Snapshot,
    store: Store,
    columns: Sequence[str] | None = None,
    row_filter: RowFilter | None = None,
) -> pa.RecordBatchReader:
    """All live rows, in no particular order; nothing is read before it is requested.

    Args:
        columns: logical names, in the order wanted; None for all.
        row_filter: applied to each batch of exactly those columns; must keep its schema.
    Raises:
        UnsupportedFeature: the table's rows cannot be read, whichever columns are requested.
        InvalidSpec: an unknown column.
        DataFileMissing, CorruptDeletionVector, StorageError: while reading.
    """
    check_rows(snapshot)
    table = table_format(snapshot)
    wanted = None if columns is None else named_columns(snapshot, columns)
    schema = arrow_schema(table, wanted)

    def batches() -> Iterator[pa.RecordBatch]:
        for add in snapshot.adds():
            dead = dv.load(store, add.deletion_vector) if add.deletion_vector else None
            with DataFileReader(
                store, add.path, table, partition_values=add.partition_values, columns=wanted
            ) as reader:
                for batch in reader.batches(dead=dead):
                    yield row_filter(batch) if row_filter is not None else batch

    return pa.RecordBatchReader.from_batches(schema, batches())


def named_columns(snapshot: Snapshot, columns: Sequence[str]) -> tuple[str, ...]:
    """The names as the table spells them. Raises: InvalidSpec."""
    return column_names(snapshot.schema, columns, resource=snapshot.location)


def column_names(schema: StructType, columns: Sequence[str], *, resource: str) -> tuple[str, ...]:
    """The names as a schema spells them. Raises: InvalidSpec."""
    for name in columns:
        if schema.get(name) is None:
            meant = closest_name(name, schema.names)
            raise InvalidSpec(
                "the table has no such column",
                resource=resource,
                field="columns",
                found=name,
                expected=f"perhaps {meant}" if meant else "a column of the table",
                remedy="`tandem table show` lists the columns.",
            )
    return tuple(schema[name].name for name in columns)


def check_rows(snapshot: Snapshot) -> None:
    """Check that the rows of a version can be read, which may not be so even if its log can. Every
    reader of rows calls this first. Raises: UnsupportedFeature."""
    protocol.check(
        snapshot.protocol,
        snapshot.metadata,
        protocol.OperationKind.READ,
        resource=snapshot.location,
    )


def table_format(snapshot: Snapshot) -> TableFormat:
    return TableFormat(snapshot.schema, snapshot.partition_columns, snapshot.configuration)
