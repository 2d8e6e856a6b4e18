"""A Spark data source that returns the records of CSV and JSON files as texts, with locations.

Every value is the text in the file, in the shape of the requested schema; Spark casts it
(`text_casts.py`) and can report the file, line and column of a value that does not fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from tandem.delta.protocol import HIDDEN_PREFIX
from tandem.errors import StatementFailed
from tandem.jobs.formats import Format
from tandem.spark.runtime.datasource import TaskSplits, get_work
from tandem.spark.runtime.row_files import InputSplit
from tandem.spark.sources.text.csv import CsvParser, CsvProblem, Dialect, lines_in, part_effect
from tandem.spark.sources.text.json import JsonOptions
from tandem.spark.sources.text.json_rows import JsonRows, shape_of
from tandem.spark.sources.text.lines import PartStart, TextFile, plan, read_text
from tandem.storage import Store, open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

NAME = "tandem-records"
FILE = f"{HIDDEN_PREFIX}file"
"""Hidden column: the index of a record's file among the work's files."""
LINE = f"{HIDDEN_PREFIX}line"
"""Hidden column: the line of the file at which the record starts, from 1."""
FOLDER = f"{HIDDEN_PREFIX}folder_"
"""Hidden columns, with a number: the values of `TextFile.folders`."""


class RecordsWork(Format):
    """The files to read; the content of the file that the option `work` names. `wanted` is the
    requested schema in Spark's JSON form; CSV has its columns in that order."""

    location: str
    storage_options: dict[str, str]
    files: tuple[TextFile, ...]
    text_format: Literal["Csv", "Json"]
    options: dict[str, str]
    wanted: str

    @property
    def encoding(self) -> str:
        return self.options.get("encoding", "utf-8")


class RecordsSource(DataSource):
    """`spark.read.format("tandem-records")`; options as of `tandem.spark.runtime.datasource`."""

    @classmethod
    def name(cls) -> str:
        return NAME

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
        for split in partition.splits:
            found = _csv(store, work, split) if work.text_format == "Csv" else None
            for columns, lines in found if found is not None else _json(store, work, split):
                if lines:
                    file = pa.repeat(pa.scalar(split.input, pa.int32()), len(lines))
                    folders = [
                        pa.repeat(pa.scalar(text, pa.string()), len(lines))
                        for text in work.files[split.input].folders
                    ]
                    arrays = [*columns, *folders, file, pa.array(lines, pa.int64())]
                    yield pa.RecordBatch.from_arrays(arrays, names=list(self._names))


Batch = tuple[list[Any], Sequence[int]]
"""Arrow arrays of the columns, and the line of each row."""


def _csv(store: Store, work: RecordsWork, split: InputSplit) -> Iterator[Batch]:
    file = work.files[split.input]
    names = [name for name, _ in shape_of(work.wanted).fields]
    span = split.of(file.size)
    begin = file.begins[split.part] if file.begins else PartStart(line=1)
    parser = CsvParser(Dialect.of(work.options), names, begin.line, inside=begin.inside)
    skip = file.skip if split.part == 0 else 0

    def arrays(rows: list[list[str | None]]) -> list[Any]:
        columns = zip(*rows, strict=True) if rows else ([] for _ in names)
        return [pa.array(column, pa.string()) for column in columns]

    try:
        for text in read_text(store, file.path, work.encoding, span.start, span.stop):
            if skip:
                text, skip = parser.past(text, skip)
            rows, lines = parser.rows(text)
            yield arrays(rows), lines
        if parser.pending and split.part + 1 < split.parts:
            # The last record ends in the next part, whose reader leaves it out.
            for text in read_text(store, file.path, work.encoding, span.stop):
                row = parser.complete(text)
                if row is not None:
                    yield arrays([row]), [parser.begun]
                if not parser.pending:
                    break
        parser.close()
    except CsvProblem as problem:
        raise StatementFailed(
            problem.message,
            resource=place(file.path, problem.line, problem.column),
            found=problem.found,
            expected=problem.expected,
            remedy="Correct the source, or its options",
        ) from problem


def _json(store: Store, work: RecordsWork, split: InputSplit) -> Iterator[Batch]:
    file = work.files[split.input]
    span = split.of(file.size)
    line = file.begins[split.part].line if file.begins else 1
    rows = JsonRows(shape_of(work.wanted), JsonOptions.of(work.options), file.path)
    for text in read_text(store, file.path, work.encoding, span.start, span.stop):
        yield rows.batch(text, line)
        line += lines_in(text)


def place(path: str, line: int, column: str = "") -> str:
    """The location of a value in a source, for errors."""
    return f"{path}, line {line}" + (f", column {column}" if column else "")


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
    cut: dict[int, list[InputSplit]] = {}
    for task in plan(files):
        for split in task.splits:
            if split.parts > 1:
                cut.setdefault(split.input, []).append(split)
    if not cut:
        return tuple(files)
    options = dict(storage_options)

    def look(split: InputSplit) -> tuple[int, int, tuple[int, bool, bool]]:
        file = files[split.input]
        span = split.of(file.size)
        store = open_store(location, options)
        texts = read_text(store, file.path, encoding, span.start, span.stop)
        return split.input, split.part, part_effect(texts, dialect)

    splits = [split for parts in cut.values() for split in parts]
    found = spark.sparkContext.parallelize(splits, len(splits)).map(look).collect()
    known = {(input_, part): seen for input_, part, seen in found}
    result = list(files)
    for index, parts in cut.items():
        begin = PartStart(line=1)
        begins = []
        for split in parts:
            begins.append(begin)
            lines, outside, inside = known[index, split.part]
            begin = PartStart(line=begin.line + lines, inside=inside if begin.inside else outside)
        result[index] = result[index].model_copy(update={"begins": tuple(begins)})
    return tuple(result)
