"""Change files: rows of a data file with the type of their change (`tandem.delta.change_feed`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pyarrow as pa
from pyroaring import BitMap64

from tandem.delta.change_feed import CHANGE_TYPE, ChangeType
from tandem.delta.datafiles.reader import DataFileReader, TableFormat, require_positions
from tandem.delta.datafiles.writer import ParquetDataWriter, WrittenFile
from tandem.delta.schema import StructType
from tandem.errors import CountMismatch
from tandem.storage.store import Store


def write_change_file(
    store: Store,
    path: str,
    rows: int,
    table: TableFormat,
    drops: BitMap64,
    change: ChangeType,
    *,
    prefix: str,
    partition_values: Mapping[str, str | None],
) -> WrittenFile:
    """Write the rows of a data file without `drops` to a change file; row groups without any are
    not read.

    Args:
        path: of the data file, for the store.
        rows: of it, deleted ones included, as the log says.
        prefix: folder of the change file below the root.
        partition_values: as they will be logged.
    Raises: CorruptDeletionVector if `drops` names a row that the file does not have, CountMismatch,
        DataFileMissing, StorageError. Then there is no new file.
    """
    require_positions(drops, rows, path)
    table = replace(table.without_row_ids, filters={})
    to = replace(table, schema=StructType((*table.schema.fields, CHANGE_TYPE)))
    names = table.data_schema.names
    with (
        DataFileReader(store, path, table, columns=names, dictionaries=True) as reader,
        # In no folders of these: `deltalake` does not decode the paths of change files.
        ParquetDataWriter(
            store, prefix, to, partition_values=partition_values, partition_folders=False
        ) as writer,
    ):
        start = written = 0
        for number, of_group in enumerate(reader.row_groups):
            if drops.range_cardinality(start, start + of_group) < of_group:
                for batch in reader.batches(dead=drops, row_groups=range(number, number + 1)):
                    type_ = pa.repeat(pa.scalar(change.value), batch.num_rows)
                    columns = [*batch.columns, type_]
                    writer.write(pa.record_batch(columns, names=[*names, CHANGE_TYPE.name]))
                    written += batch.num_rows
            start += of_group
        if (start, written) != (rows, rows - len(drops)):
            raise CountMismatch(
                "a change file does not have the rows of its data file",
                resource=path,
                found=f"{written} of {start} rows",
                expected=f"{rows - len(drops)} of {rows}",
                remedy="Nothing was published; run the operation again. If it fails again, "
                "restore the file, or the table to a version without it",
            )
    [file] = writer.files
    return file
