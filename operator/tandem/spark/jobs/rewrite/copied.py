"""A bin of which row groups are copied as bytes: what fits is copied, the rest is encoded.

Inputs between two that are copied are encoded into a file on the task's disk, whose row groups are
copied in turn: so the rows keep their order, and one output may hold both. Deleted rows of a file
that is copied stay in the output: the row map has no dead rows for it, so that the commit moves the
file's deletion vector. It must not import Spark.
"""

from __future__ import annotations

import tempfile
from collections import Counter as Tally
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import Final, Self

import pyarrow as pa

from tandem.delta.datafiles.float_bounds import FloatStatistics, has_float, leaves_of, summaries
from tandem.delta.datafiles.missing import missing, unreadable
from tandem.delta.datafiles.page_walk import PageDamaged
from tandem.delta.datafiles.reader import DataFileReader, TableFormat, arrow_schema
from tandem.delta.datafiles.rowgroups.fitness import (
    Demands,
    Unfit,
    is_small,
    unfit,
)
from tandem.delta.datafiles.rowgroups.footer import FileFooter, FooterInvalid, parse, read_footer
from tandem.delta.datafiles.rowgroups.joined import JoinedFile
from tandem.delta.datafiles.rowgroups.schema import key_of
from tandem.delta.datafiles.writer import Describe, ParquetDataWriter, WrittenFile
from tandem.delta.protocol import asks_for_deletion_vectors
from tandem.errors import ObjectNotFound, StorageError
from tandem.jobs.formats import InputFile, JobBin
from tandem.spark.jobs.rewrite.decoded_rows import (
    ahead,
    decoded,
    encoding_of,
    live_batches,
    require_rows,
)
from tandem.spark.runtime.counters import Counter
from tandem.spark.runtime.frames import dead_rows
from tandem.storage import Store, open_store
from tandem.storage.files import read_ahead, version_of

_FOOTER: Final = 64 << 10
"""Bytes that are read at a file's end: most footers are shorter."""


@dataclass(frozen=True, slots=True)
class CopyChoice:
    """What is copied of a bin: the footer of each input that is, and why each other is not."""

    inputs: tuple[FileFooter | Unfit, ...]
    versions: tuple[str | None, ...]
    """Of the objects of which these are the footers, as far as the store names versions."""

    @property
    def copied(self) -> frozenset[int]:
        """The numbers of the inputs that are copied."""
        return frozenset(n for n, each in enumerate(self.inputs) if isinstance(each, FileFooter))


def choose(
    store: Store, inputs: Sequence[InputFile], table: TableFormat, group_rows: int | None = None
) -> CopyChoice | None:
    """What to copy of a bin; None if nothing can be.

    Args:
        group_rows: `minRowGroupRows`; None for the default.
    Raises: DataFileMissing, StorageError; CountMismatch if a file that can be copied has another
        number of rows than planned; UnsupportedFeature for the table's codec.
    """
    if all(is_small(each.rows, each.size, group_rows) for each in inputs):
        return None  # as the log says; no footer need be read
    demands = Demands.of(table, group_rows)
    keeps_deleted = asks_for_deletion_vectors(table.configuration)
    judged = [_judge(store, each, demands, keeps_deleted=keeps_deleted) for each in inputs]
    found = [each for each, _ in judged]
    sizes: Tally[object] = Tally()
    for each in found:
        if isinstance(each, FileFooter):
            sizes[key_of(each)] += each.size
    if not sizes:
        return None
    ours = key_of(demands.ours)
    # What is encoded has our schema, and must be able to share a file with what is copied.
    mixed = len(sizes) > 1 or any(isinstance(each, Unfit) for each in found)
    key = ours if mixed else next(iter(sizes))
    if key not in sizes:
        return None
    return CopyChoice(
        tuple(
            Unfit.COLUMNS if isinstance(each, FileFooter) and key_of(each) != key else each
            for each in found
        ),
        tuple(version for _, version in judged),
    )


def _judge(
    store: Store, input_: InputFile, demands: Demands, *, keeps_deleted: bool
) -> tuple[FileFooter | Unfit, str | None]:
    """The footer or why it is not copied, and the version of the file."""
    if is_small(input_.rows, input_.size, demands.group_rows):
        return Unfit.SMALL, None
    deleted = len(dead_rows(input_))
    if deleted and not keeps_deleted:
        return Unfit.DELETED, None
    path = decoded(input_)
    try:
        with store.open_input(path) as source:
            read_ahead(source, _FOOTER)
            version = version_of(source)
            data = read_footer(source)
            footer = parse(data, source.seek(0, 2))
    except ObjectNotFound as error:
        raise missing(path) from error
    except FooterInvalid:
        return Unfit.FOOTER, None  # decoding says what is wrong, if anything is
    require_rows(input_, footer.rows)
    return unfit(footer, demands, deleted=deleted) or footer, version


@dataclass
class BinFiles:
    """Writes the files of a bin. Use as a context manager: an exception discards the open one.

    Args:
        prefix: folder of the files, below the table's root.
        target: bytes at which a file is closed, 0 for never.
    """

    store: Store
    prefix: str
    table: TableFormat
    bin: JobBin
    task: int
    target: int
    describe: Describe
    counter: Counter
    files: list[WrittenFile] = field(default_factory=list)
    rows: int = 0
    copied_in_store: int = 0
    """Bytes that never left the store."""
    _open: JoinedFile | None = None

    def write(self, inputs: Sequence[InputFile], chosen: CopyChoice) -> None:
        """Copy or encode the inputs, in order. Raises: DataFileMissing, StorageError,
        CountMismatch, UnsupportedFeature."""
        try:
            self._write(inputs, chosen)
        except ObjectNotFound as error:
            # Of any input: a store copies them while others are appended.
            raise missing(error.resource.removeprefix(f"{self.store.location}/")) from error

    def _write(self, inputs: Sequence[InputFile], chosen: CopyChoice) -> None:
        numbered = zip(inputs, chosen.inputs, chosen.versions, strict=True)
        for is_copied, run in groupby(numbered, lambda each: isinstance(each[1], FileFooter)):
            if is_copied:
                for input_, footer, version in run:
                    assert isinstance(footer, FileFooter)
                    self._copy(self.store, decoded(input_), footer, version)
                    self.counter.add()
            else:
                self._encode([input_ for input_, _, _ in run])
        self.counter.show()
        self._finish()

    def _encode(self, inputs: Sequence[InputFile]) -> None:
        with tempfile.TemporaryDirectory(prefix="tandem-encoded-") as folder:
            disk = open_store(f"file://{folder}")
            writer = ParquetDataWriter(
                disk, "", self.table, dictionary=encoding_of(self.store, inputs, self.table)
            )
            with writer:
                for _, batch in ahead(live_batches(self.store, inputs, self.table, self.counter)):
                    writer.write(batch)
            for file in writer.files:
                with disk.open_input(file.path) as source:
                    footer = parse(read_footer(source), file.size)
                self._copy(disk, file.path, footer)

    def _copy(
        self, store: Store, path: str, footer: FileFooter, version: str | None = None
    ) -> None:
        try:
            with ExitStack() as stack:
                source = stack.enter_context(store.open_input(path))
                read_ahead(source, 1)
                if version_of(source) != version:
                    raise FooterInvalid("the file was replaced after its footer was read")
                floats = stack.enter_context(FloatColumns(store, path, self.table))
                for number, group in enumerate(footer.groups):
                    if not group.rows:
                        continue
                    if self._open is None:
                        self._open = JoinedFile(
                            self.store, self.prefix, self.table, footer, self.task
                        )
                    self._open.copy(source, footer, group, floats.summaries(number))
                    if self._open.is_full or 0 < self.target <= self._open.size:
                        self._finish()
        except (FooterInvalid, OSError) as error:
            if isinstance(error, StorageError):
                raise
            if isinstance(error, PageDamaged):
                columns = self.table.data_schema
                names = {each.physical_name: each.name for each in columns}
                raise unreadable(path, error, names) from error
            raise StorageError(
                "the row groups of a data file cannot be copied",
                resource=path,
                found=str(error)[:300],
                expected="the bytes that its footer names",
                remedy="Restore the file, or the table to a version without it",
            ) from error

    def _finish(self) -> None:
        if self._open is not None:
            joined, self._open = self._open, None
            file = joined.close(self.bin.partition_values, self.describe)
            self.files.append(file)
            self.rows += file.rows
            self.copied_in_store += joined.copied_in_store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._open is not None:
            self._open.abort()
            self._open = None


class FloatColumns:
    """The statistics of the floats of a file's row groups, by Parquet column."""

    def __init__(self, store: Store, path: str, table: TableFormat) -> None:
        schema = arrow_schema(table, table.data_schema.names)
        starts = list(accumulate((leaves_of(each.type) for each in schema), initial=0))
        self._starts = [starts[n] for n, each in enumerate(schema) if has_float(each.type)]
        names = [each.name for each in schema if has_float(each.type)]
        self._reader = DataFileReader(store, path, table, columns=names) if names else None

    def summaries(self, group: int) -> Mapping[int, FloatStatistics]:
        """Of the row group with this number."""
        found: dict[int, FloatStatistics] = {}
        for batch in self._batches(group):
            columns = zip(self._starts, map(pa.chunked_array, zip(batch.columns)), strict=True)
            part = summaries(columns)
            found = {n: found[n].joined(each) if n in found else each for n, each in part.items()}
        return found

    def _batches(self, group: int) -> Iterator[pa.RecordBatch]:
        if self._reader is not None:
            yield from self._reader.batches(row_groups=range(group, group + 1))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._reader is not None:
            self._reader.close()
