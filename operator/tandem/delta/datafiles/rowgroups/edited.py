"""STAND-IN until the helper's module lands: whole file encoded."""

from __future__ import annotations
from dataclasses import dataclass
import numpy as np, numpy.typing as npt
import pyarrow as pa
from pyroaring import BitMap64
from tandem.delta.datafiles.reader import DataFileReader, TableFormat
from tandem.delta.datafiles.writer import ParquetDataWriter, WrittenFile


@dataclass(frozen=True, slots=True)
class NewValues:
    positions: npt.NDArray[np.int64]
    rows: pa.Table
    columns: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class EditedFile:
    file: WrittenFile
    bytes_copied: int
    bytes_encoded: int


class FileEditor:
    def __init__(
        self,
        store,
        path,
        size,
        rows,
        table: TableFormat,
        *,
        prefix,
        partition_values=None,
        describe=None,
    ):  # type: ignore
        self.a = (store, path, table, prefix, partition_values, describe)

    def edit(self, drops: BitMap64, new: NewValues | None = None, *, task: int = 0) -> EditedFile:
        store, path, table, prefix, values, describe = self.a
        names = table.data_schema.names
        with DataFileReader(store, path, table, columns=names) as r:
            t = pa.Table.from_batches(list(r.batches()))
            n = r.num_rows
        keep = np.ones(n, bool)
        keep[list(drops)] = False
        take = np.arange(n)
        if new is not None:
            take[new.positions] = n + np.arange(len(new.positions))
            t = pa.concat_tables([t, new.rows.select(t.column_names).cast(t.schema)])
        t = t.take(pa.array(take[keep]))
        with ParquetDataWriter(
            store, prefix, table, partition_values=values, task=task, describe=describe
        ) as w:
            for b in t.combine_chunks().to_batches():
                w.write(b)
        files = w.files
        assert len(files) == 1
        return EditedFile(files[0], 0, files[0].size)
