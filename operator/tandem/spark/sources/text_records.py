"""Spark's data source of the records of CSV and JSON files, as texts with locations.

Every value is the text in the file, in the shape of the requested schema; Spark casts it
(`casts.py`) and can report the file, line and column of a value that does not fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from tandem.delta.protocol import HIDDEN_PREFIX
from tandem.delta.schema import parse, to_arrow_type
from tandem.jobs.formats import Format
from tandem.spark.runtime.datasource import TaskSplits, get_work, task_splits
from tandem.spark.runtime.row_files import InputSplit
from tandem.spark.sources.csv_text import CsvParser, Dialect, has_header, part_effect
from tandem.spark.sources.json_text import JsonOptions, JsonRows
from tandem.spark.sources.text_files import compression_of, lines_in, read_text, split_lines
from tandem.storage import Store, open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

STRIPE_BYTES = 32 << 20
"""The approximate size that one task reads. Text is several times the size of Parquet."""
RECORDS_SOURCE = "tandem-records"
FILE = f"{HIDDEN_PREFIX}file"
"""Hidden column: the index of a record's file among the work's files."""
LINE = f"{HIDDEN_PREFIX}line"
"""Hidden column: the line of the file at which the record starts, from 1."""
FOLDER = f"{HIDDEN_PREFIX}folder_"
"""Hidden columns, with a number: the values of `TextFile.folders`."""


class PartStart(Format):
    """The start of a part of a file: its line, from 1, and whether it is inside a quoted
    value."""

    line: int = 1
    inside: bool = False


class TextFile(Format):
    """`path` as in the source's store. `begins` are the starts of the parts of a file that is
    split; `folders` the values of columns in names of its folders."""

    path: str
    size: int
    begins: tuple[PartStart, ...] = ()
    folders: tuple[str | None, ...] = ()


class RecordsWork(Format):
    """The files to read; the content of the file that the option `work` names. `wanted` is the
    requested schema, with texts as atomic types, as Delta writes it; CSV has its columns in that
    order. Lines have one column, without locations."""

    location: str
    storage_options: dict[str, str]
    files: tuple[TextFile, ...]
    text_format: Literal["Csv", "Json", "Lines"]
    options: dict[str, str]
    wanted: str

    @property
    def encoding(self) -> str:
        return self.options.get("encoding", "utf-8")


class RecordsSource(DataSource):
    """`spark.read.format("tandem-records")`; options as of `tandem.spark.runtime.datasource`."""

    @classmethod
    def name(cls) -> str:
        return RECORDS_SOURCE

    def reader(self, schema: StructType) -> DataSourceReader:
        _, data = get_work(self.options)
        return RecordsReader(RecordsWork.model_validate_json(data), tuple(schema.names))


class RecordsReader(DataSourceReader):
    def __init__(self, work: RecordsWork, names: tuple[str, ...]) -> None:
        self._work = work
        self._names = names

    def partitions(self) -> Sequence[InputPartition]:
        return plan(self._work.files)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TaskSplits)
        work = self._work
        store = open_store(work.location, work.storage_options)
        batches = {"Csv": _csv, "Json": _json, "Lines": _lines}[work.text_format]
        for split in partition.splits:
            for columns, lines in batches(store, work, split):
                if not lines:
                    continue
                file = pa.repeat(pa.scalar(split.input, pa.int32()), len(lines))
                folders = [
                    pa.repeat(pa.scalar(text, pa.string()), len(lines))
                    for text in work.files[split.input].folders
                ]
                arrays = [*columns, *folders, file, pa.array(lines, pa.int64())]
                names = list(self._names)
                yield pa.RecordBatch.from_arrays(arrays[: len(names)], names=names)


Batch = tuple[list[Any], Sequence[int]]
"""Arrow arrays of the columns, and the line of each row."""


def plan(files: Sequence[TextFile], size: int = STRIPE_BYTES) -> list[TaskSplits]:
    """The splits that each task reads; parts are byte ranges; compressed files are not split."""
    whole = {index for index, file in enumerate(files) if compression_of(file.path)}
    return task_splits([file.size for file in files], size, whole)


def _begin(file: TextFile, split: InputSplit) -> PartStart:
    return file.begins[split.part] if file.begins else PartStart()


def _csv(store: Store, work: RecordsWork, split: InputSplit) -> Iterator[Batch]:
    file = work.files[split.input]
    span, begin = split.of(file.size), _begin(file, split)
    parser = CsvParser(
        Dialect.of(work.options),
        parse(work.wanted).names,
        file.path,
        begin.line,
        inside=begin.inside,
        header=has_header(work.options) and split.part == 0,
    )
    for text in read_text(store, file.path, work.encoding, span.start, span.stop):
        yield parser.batch(text)
    if parser.pending and split.part + 1 < split.parts:
        # The last record ends in the next part, whose reader leaves it out.
        for text in read_text(store, file.path, work.encoding, span.stop):
            yield parser.batch(text, pending=True)
            if not parser.pending:
                break
    parser.close()


def _json(store: Store, work: RecordsWork, split: InputSplit) -> Iterator[Batch]:
    file = work.files[split.input]
    span, line = split.of(file.size), _begin(file, split).line
    shape = to_arrow_type(parse(work.wanted))
    rows = JsonRows(shape, JsonOptions.of(work.options), file.path)
    for text in read_text(store, file.path, work.encoding, span.start, span.stop):
        yield rows.batch(text, line)
        line += lines_in(text)


def _lines(store: Store, work: RecordsWork, split: InputSplit) -> Iterator[Batch]:
    file = work.files[split.input]
    span = split.of(file.size)
    for text in read_text(store, file.path, work.encoding, span.start, span.stop):
        lines = split_lines(text)
        yield [pa.array(lines, pa.string())], range(len(lines))


def with_begins(
    spark: SparkSession,
    location: str,
    storage_options: Mapping[str, str],
    files: Sequence[TextFile],
    encoding: str,
    dialect: Dialect | None,
) -> tuple[TextFile, ...]:
    """The files with the starts of their parts. Files that are split are read once for this:
    whether a line end is inside quotes depends on all the text before it."""
    options = dict(storage_options)

    def look(split: InputSplit) -> tuple[int, bool, bool]:
        file = files[split.input]
        span = split.of(file.size)
        store = open_store(location, options)
        texts = read_text(store, file.path, encoding, span.start, span.stop)
        return part_effect(texts, dialect)

    splits = [split for task in plan(files) for split in task.splits if split.parts > 1]
    if not splits:
        return tuple(files)
    seen = spark.sparkContext.parallelize(splits, len(splits)).map(look).collect()
    begins: dict[int, list[PartStart]] = {}
    for split, (lines, outside, inside) in zip(splits, seen, strict=True):
        starts = begins.setdefault(split.input, [PartStart()])
        last = starts[-1]
        is_open = inside if last.inside else outside
        starts.append(PartStart(line=last.line + lines, inside=is_open))
    return tuple(
        file.model_copy(update={"begins": tuple(begins.get(index, ()))})
        for index, file in enumerate(files)
    )
