"""A bin of which row groups are copied as bytes: what fits is copied, the rest is encoded.

Inputs between two that are copied are encoded into a file on the task's disk, whose row groups are
copied in turn: so the rows keep their order, and one output may hold both. Deleted rows of a file
that is copied stay in the output: the row map has no dead rows for it, so that the commit moves the
file's deletion vector. It must not import Spark.
"""

from __future__ import annotations

import tempfile
from collections import Counter as Tally
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Self

from tandem.delta.datafiles.file_errors import missing
from tandem.delta.datafiles.reader import TableFormat
from tandem.delta.datafiles.rowgroups.footer import FileFooter, parse, read_footer
from tandem.delta.datafiles.rowgroups.joined import CopySource, FloatColumns, JoinedFile, copying
from tandem.delta.datafiles.rowgroups.schema import Demands, Unfit, is_small, key_of, unfit
from tandem.delta.datafiles.writer import Describe, ParquetDataWriter, WrittenFile
from tandem.delta.protocol import asks_for_deletion_vectors
from tandem.errors import ObjectNotFound
from tandem.jobs.formats import InputFile, JobBin
from tandem.spark.jobs.rewrite.decoded_rows import (
    ahead,
    decoded,
    encoding_of,
    live_batches,
    require_rows,
    write_in_order,
)
from tandem.spark.runtime.counters import Counter
from tandem.spark.runtime.frames import dead_rows
from tandem.storage import Store, open_store


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
    source = CopySource.read(store, decoded(input_))
    if source.footer is None:
        return Unfit.FOOTER, None
    require_rows(input_, source.footer.rows)
    return unfit(source.footer, demands, deleted=deleted) or source.footer, source.version


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
                batches = live_batches(self.store, inputs, self.table, self.counter)
                write_in_order(writer, ahead(batches), self.table)
            for file in writer.files:
                with disk.open_input(file.path) as source:
                    footer = parse(read_footer(source), file.size)
                self._copy(disk, file.path, footer)

    def _copy(
        self, store: Store, path: str, footer: FileFooter, version: str | None = None
    ) -> None:
        with (
            copying(path, self.table),
            CopySource(store, path, footer, version).open() as source,
            FloatColumns(store, path, self.table) as floats,
        ):
            for number, group in enumerate(footer.groups):
                if not group.rows:
                    continue
                if self._open is None:
                    values = self.bin.partition_values
                    self._open = JoinedFile(
                        self.store, self.prefix, self.table, footer, self.task, values
                    )
                self._open.copy(source, footer, group, floats.summaries(number))
                if self._open.is_full or 0 < self.target <= self._open.size:
                    self._finish()

    def _finish(self) -> None:
        if self._open is not None:
            joined, self._open = self._open, None
            file = joined.close(self.describe)
            self.files.append(file)
            self.rows += file.rows
            self.copied_in_store += joined.copied_in_store

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._open is not None:
            self._open.abort()
            self._open = None
