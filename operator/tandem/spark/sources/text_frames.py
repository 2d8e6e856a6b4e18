"""CSV and JSON sources as DataFrames: determines their columns, and converts their records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import pyarrow as pa
from pyspark.errors import AnalysisException
from pyspark.sql import types as T  # noqa: N812 - Spark's own convention
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from tandem.errors import InvalidSpec
from tandem.jobs.formats import MergeJob
from tandem.spark.runtime.control import Control
from tandem.spark.runtime.datasource import TaskSplits, get_work, put_work, task_splits
from tandem.spark.runtime.listing import FolderColumn, ListedSource, lacking, types_in
from tandem.spark.runtime.row_files import InputSplit
from tandem.spark.sources.casts import cast_texts
from tandem.spark.sources.csv_text import Dialect, csv_columns, part_effect
from tandem.spark.sources.json_text import JsonOptions, JsonParser, JsonProblem
from tandem.spark.sources.options import check_option_names, source_job
from tandem.spark.sources.text_files import WHITE, compression_of, lines_in, read_text, split_lines
from tandem.spark.sources.text_records import (
    FILE,
    FOLDER,
    LINE,
    PartStart,
    RecordsWork,
    TextFile,
    records,
)
from tandem.storage import open_store

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

_CORRUPT = f"{FILE}_corrupt"


STRIPE_BYTES = 32 << 20
"""The approximate size that one task reads. Text is several times the size of Parquet."""
RECORDS_SOURCE = "tandem-records"


@dataclass(frozen=True)
class TextSource:
    """A source of CSV or JSON. `schema` is the table's; `places`: whether rows have their
    location."""

    control: Control
    spark: SparkSession
    source: ListedSource
    options: Mapping[str, str]
    schema: StructType
    places: bool

    def csv(self) -> Iterator[tuple[DataFrame, Column | None, str]]:
        """For each group of files with the same header: its rows, the location of a row, and the
        path of the first file. Columns that the table lacks are strings."""
        field, table = source_job(self.control.spec).source_field, self.schema.names
        alike: dict[tuple[str, ...], list[TextFile]] = {}
        for number, meta in enumerate(self.source.files):
            names = csv_columns(
                self.source, meta.path, self.options, table, field, self._folder_columns
            )
            if names is not None:
                file = self._file(number, lacking(self._folder_columns, names))
                alike.setdefault(names, []).append(file)
        for names, files in alike.items():
            folders = lacking(self._folder_columns, names)
            yield *self._records("Csv", files, self._typed(names), folders), files[0].path

    def json(self) -> tuple[DataFrame, Column | None]:
        """For an ingest the table's columns; for a merge those of the source, with the table's
        types if it has them, else with those that Spark infers. Also the location of a row."""
        folders = self._folder_columns
        files = [self._file(number, folders) for number in range(len(self.source.files))]
        wanted = self.schema
        if isinstance(source_job(self.control.spec), MergeJob):
            wanted = self._inferred(files)
        return self._records("Json", files, wanted, folders)

    @cached_property
    def _folder_columns(self) -> Sequence[FolderColumn]:
        return self.source.folder_columns(types_in(self.schema.json()))

    def _file(self, number: int, folders: Sequence[FolderColumn]) -> TextFile:
        meta = self.source.files[number]
        texts = tuple(column.text(number, meta.path) for column in folders)
        return TextFile(path=meta.path, size=meta.size, folders=texts)

    def _typed(self, names: Sequence[str]) -> StructType:
        known = {f.name.lower(): f.dataType for f in self.schema.fields}
        fields = [T.StructField(n, known.get(n.lower(), T.StringType())) for n in names]
        return T.StructType(fields)

    def _records(
        self,
        form: Literal["Csv", "Json"],
        files: Sequence[TextFile],
        wanted: StructType,
        folders: Sequence[FolderColumn],
    ) -> tuple[DataFrame, Column | None]:
        own = {name.lower() for name in wanted.names}
        more = self._typed([c.name for c in folders if c.name.lower() not in own])
        every = T.StructType([*wanted.fields, *more.fields])
        check_option_names(every.names, source_job(self.control.spec))
        hidden = [
            *(T.StructField(f"{FOLDER}{n}", T.StringType()) for n in range(len(folders))),
            T.StructField(FILE, T.IntegerType()),
            T.StructField(LINE, T.LongType()),
        ]
        dialect = Dialect.of(self.options) if form == "Csv" else None
        files = with_begins(
            self.spark,
            self.source.store.location,
            self.source.options,
            files,
            self.options.get("encoding", "utf-8"),
            dialect,
        )
        return cast_texts(
            self._load(form, files, _texts(wanted), hidden),
            every,
            [file.path for file in files],
            self.options,
            json=form == "Json",
            places=self.places,
            folders=folders,
        )

    def _load(
        self,
        form: Literal["Csv", "Json", "Lines"],
        files: Sequence[TextFile],
        texts: StructType,
        hidden: Sequence[T.StructField],
    ) -> DataFrame:
        self.spark.dataSource.register(RecordsSource)
        work = RecordsWork(
            location=self.source.store.location,
            storage_options=dict(self.source.options),
            files=tuple(files),
            text_format=form,
            options=dict(self.options),
            wanted=texts.json(),
        )
        reader = self.spark.read.format(RECORDS_SOURCE).options(**put_work(self.control, work, 0))
        return reader.schema(T.StructType([*texts.fields, *hidden])).load()

    def _inferred(self, files: Sequence[TextFile]) -> StructType:
        line = T.StructType([T.StructField("value", T.StringType())])
        lines = self._load("Lines", files, line, ())
        # Malformed text is an error when it is read, with its location.
        lenient = {k: v for k, v in self.options.items() if k != "encoding"}
        reader = self.spark.read.options(**lenient).option("columnNameOfCorruptRecord", _CORRUPT)
        try:
            inferred = reader.json(lines).schema.fields
        except AnalysisException:
            # Reports objects with a duplicate field, whose location Spark does not report.
            self._require_one_of_each(files)
            raise
        known = {f.name.lower(): f.dataType for f in self.schema.fields}
        unknown = [f for f in inferred if f.name.lower() not in known]
        repeating = [f.name for f in unknown if _repeats(f.dataType)]
        if repeating:
            self._require_one_of_each(files)
            raise self._two_spellings("a field inside an object", repeating)
        fields: dict[str, T.StructField] = {}
        for found in inferred:
            key = found.name.lower()
            if found.name == _CORRUPT:
                continue
            if key not in known and key in fields and fields[key].name != found.name:
                names = [fields[key].name, found.name]
                raise self._two_spellings("a field that the table does not have", names)
            fields.setdefault(key, T.StructField(found.name, known.get(key, found.dataType)))
        return T.StructType(list(fields.values()))

    def _two_spellings(self, what: str, names: Sequence[str]) -> InvalidSpec:
        job = source_job(self.control.spec)
        return InvalidSpec(
            f"{what} is spelled in two ways",
            resource=job.source_location,
            field=job.source_field,
            found=", ".join(names),
            expected="one spelling",
            remedy="Spell the field in one way in the source",
        )

    def _require_one_of_each(self, files: Sequence[TextFile]) -> None:
        """Check that no object has a field twice, in any case. Raises: StatementFailed."""
        parser = JsonParser(JsonOptions.of(self.options))
        encoding = self.options.get("encoding", "utf-8")
        for file in files:
            first = 1
            for text in read_text(self.source.store, file.path, encoding):
                for number, line in enumerate(split_lines(text), first):
                    try:
                        if line.strip(WHITE):
                            parser.check_fields(line)
                    except JsonProblem as problem:
                        raise problem.located(file.path, number) from problem
                first += lines_in(text)


def _repeats(type_: DataType) -> bool:
    """Whether a struct at some level has a field twice, in any case."""
    match type_:
        case T.StructType():
            names = [f.name.lower() for f in type_.fields]
            return len(set(names)) < len(names) or any(_repeats(f.dataType) for f in type_.fields)
        case T.ArrayType():
            return _repeats(type_.elementType)
        case _:
            return False


def _texts(schema: StructType) -> StructType:
    """The same shape, with strings at the leaves."""

    def of(type_: DataType) -> DataType:
        match type_:
            case T.StructType():
                return _texts(type_)
            case T.ArrayType():
                return T.ArrayType(of(type_.elementType), True)
            case T.MapType():
                return T.MapType(T.StringType(), of(type_.valueType), True)
            case _:
                return T.StringType()

    return T.StructType([T.StructField(f.name, of(f.dataType)) for f in schema.fields])


# Spark's data source of the records.


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
        for split in partition.splits:
            for columns, lines in records(store, work, split):
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


def plan(files: Sequence[TextFile], size: int = STRIPE_BYTES) -> list[TaskSplits]:
    """The splits that each task reads; parts are byte ranges; compressed files are not split."""
    whole = {index for index, file in enumerate(files) if compression_of(file.path)}
    return task_splits([file.size for file in files], size, whole)


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
