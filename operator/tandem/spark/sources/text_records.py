"""Spark's data source of the records of CSV and JSON files, as texts with locations."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

from tandem.delta.protocol import HIDDEN_PREFIX
from tandem.errors import InvalidSpec, StatementFailed
from tandem.jobs.formats import Format
from tandem.spark.runtime.datasource import TaskSplits, get_work
from tandem.spark.runtime.row_files import InputSplit
from tandem.spark.sources.csv_text import (
    WHITE,
    CsvParser,
    CsvProblem,
    Dialect,
    lines_in,
    part_effect,
)
from tandem.spark.sources.json_text import (
    JsonOptions,
    JsonProblem,
    compact,
    parse,
    parse_thoroughly,
)
from tandem.spark.sources.text_lines import PartStart, TextFile, plan, read_text, split_lines
from tandem.storage import Store, open_store

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


# JSON lines as Arrow arrays of texts in the shape of a requested schema. Pure.
#
# Names are case-insensitive, like all column names; a name that the schema lacks, an object with a
# name in two cases, and a value of another kind (an object for a number) are errors.


@dataclass(frozen=True)
class Shape:
    """The structure of a type: `kind` is `struct`, `array`, `map`, or Spark's name of an atomic
    type."""

    kind: str
    fields: tuple[tuple[str, Shape], ...] = ()
    """Fields of a struct; the element of an array, the value of a map."""

    @cached_property
    def by_name(self) -> Mapping[str, tuple[str, Shape]]:
        return {name.lower(): (name, shape) for name, shape in self.fields}

    @cached_property
    def arrow(self) -> pa.DataType:
        """The type of the arrays: strings at the leaves."""
        inner = [(name, shape.arrow) for name, shape in self.fields]
        if self.kind == "struct":
            return pa.struct(inner)
        if self.kind == "array":
            return pa.list_(inner[0][1])
        return pa.map_(pa.string(), inner[0][1]) if self.kind == "map" else pa.string()


@lru_cache(maxsize=64)
def shape_of(schema_json: str) -> Shape:
    """From a schema in Spark's JSON form."""
    return _shape(json.loads(schema_json))


def _shape(type_: Any) -> Shape:
    if isinstance(type_, str):
        return Shape(type_)
    if type_["type"] == "struct":
        return Shape("struct", tuple((f["name"], _shape(f["type"])) for f in type_["fields"]))
    if type_["type"] == "array":
        return Shape("array", (("element", _shape(type_["elementType"])),))
    if type_["type"] == "map":
        return Shape("map", (("value", _shape(type_["valueType"])),))
    return Shape(str(type_["type"]))


class _Thorough(Exception):
    """A value is needed as JSON text, which only the thorough parser provides."""


class JsonRows:
    """The rows of one file.

    Args:
        shape: that of the requested rows, a struct.
        path: the file, for errors.
    """

    def __init__(self, shape: Shape, lenient: JsonOptions, path: str) -> None:
        self._shape = shape
        self._lenient = lenient
        self._path = path
        self._exact: set[tuple[str, ...]] = set()
        self._names = {name for name, _ in shape.fields}

    def batch(self, text: str, first: int) -> tuple[list[Any], list[int]]:
        """Arrow arrays, one per field, of whole lines, and the line of each row. `first`: the
        number of the first line.

        Raises: StatementFailed; InvalidSpec for a field that the schema lacks.
        """
        rows: list[dict[str, Any]] = []
        lines: list[int] = []
        sources: list[str] = []
        lenient, exact = self._lenient, self._exact
        for number, line in enumerate(split_lines(text), first):
            try:
                value = parse(line, lenient)
            except JsonProblem as problem:
                if not line.strip(WHITE):
                    continue
                raise self._located(problem, number) from problem
            if type(value) is dict:
                if tuple(value) not in exact:
                    value = self._known(value, number)
                rows.append(value)
                lines.append(number)
                sources.append(line)
            else:
                for element in self._elements(value, number, line):
                    rows.append(element)
                    lines.append(number)
                    sources.append(line)
        columns = []
        for name, shape in self._shape.fields:
            column = [row.get(name) for row in rows]
            columns.append(self._array(name, shape, column, lines, sources))
        return columns, lines

    def _elements(self, value: Any, number: int, line: str) -> list[dict[str, Any]]:
        """Spark reads the objects of an array as rows."""
        if not isinstance(value, list) or not all(isinstance(e, dict) for e in value):
            problem = JsonProblem(
                "a line is not an object", found=line[:60], expected="one JSON object on each line"
            )
            raise self._located(problem, number)
        return [self._known(element, number) for element in value]

    def _known(self, value: dict[str, Any], number: int) -> dict[str, Any]:
        """An object with the schema's names."""
        try:
            known = _renamed(value, self._shape, "")
        except JsonProblem as problem:
            raise self._located(problem, number) from problem
        if known is value:
            self._exact.add(tuple(value))
        return known

    def _array(
        self, name: str, shape: Shape, column: list[Any], lines: list[int], sources: list[str]
    ) -> Any:
        if shape.kind == "boolean":
            words = {True: "true", False: "false"}
            column = [words[v] if v is True or v is False else v for v in column]
        if not shape.fields:
            try:
                return pa.array(column, pa.string())
            except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeEncodeError):
                pass  # a value that is not a text: converted one by one below
        found = []
        for value, number, line in zip(column, lines, sources, strict=True):
            try:
                found.append(self._converted(value, shape, name, line))
            except JsonProblem as problem:
                raise self._located(problem, number) from problem
        return pa.array(found, shape.arrow)

    def _converted(self, value: Any, shape: Shape, name: str, line: str) -> Any:
        try:
            return _text(value, shape, name, _refuse)
        except _Thorough:
            whole = parse_thoroughly(line, self._lenient)
            if isinstance(whole, list):
                # The index of the element is not known here; arrays of rows are rare.
                raise JsonProblem(
                    "an object is not text", path=name, expected="one JSON object on each line"
                ) from None
            renamed = _renamed(whole, self._shape, "")
            return _text(renamed.get(name), shape, name, compact)

    def _located(self, problem: JsonProblem, line: int) -> StatementFailed | InvalidSpec:
        return _located(problem, self._path, line)


def check_fields(text: str, first: int, lenient: JsonOptions, path: str) -> None:
    """Check that no object in a text of whole lines has a field twice, in any case. `first`: the
    number of the first line. Raises: StatementFailed."""
    for number, line in enumerate(split_lines(text), first):
        if not line.strip(WHITE):
            continue
        try:
            _once(parse_thoroughly(line, lenient), "")
        except JsonProblem as problem:
            raise _located(problem, path, number) from problem


def _once(value: Any, path: str) -> None:
    if isinstance(value, list):
        for element in value:
            _once(element, path)
    if not isinstance(value, dict):
        return
    lowered = [name.lower() for name in value]
    for name, inner in value.items():
        here = f"{path}.{name}" if path else name
        if lowered.count(name.lower()) > 1:
            raise JsonProblem(
                "an object has a field twice, in different case",
                path=here,
                found=", ".join(n for n in value if n.lower() == name.lower()),
                expected="each field once",
            )
        _once(inner, here)


def _located(problem: JsonProblem, path: str, line: int) -> StatementFailed | InvalidSpec:
    column = f", column {problem.path}" if problem.path else ""
    at = f" (character {problem.at})" if problem.at else ""
    kind = InvalidSpec if isinstance(problem, _Unknown) else StatementFailed
    return kind(
        f"{problem.message}{at}",
        resource=f"{path}, line {line}{column}",
        found=problem.found,
        expected=problem.expected,
        remedy="Add the columns to the table, or leave them out of the source"
        if isinstance(problem, _Unknown)
        else "Correct the source, or its options",
    )


class _Unknown(JsonProblem):
    """A field that the schema lacks."""


def _refuse(value: Any) -> str:  # noqa: ARG001 - as `compact`
    raise _Thorough


def _renamed(value: dict[str, Any], shape: Shape, above: str) -> dict[str, Any]:
    """An object with the schema's names; the same object if it has them already."""
    known = shape.by_name
    result: dict[str, Any] = {}
    for name, inner in value.items():
        found = known.get(name.lower())
        if found is None:
            raise _Unknown(
                "the source has columns that the table lacks",
                path=above + name,
                found=above + name,
                expected=", ".join(above + n for n, _ in shape.fields)[:300],
            )
        if found[0] in result:
            raise JsonProblem(
                "an object has a field twice, in different case",
                path=above + found[0],
                found=", ".join(n for n in value if n.lower() == name.lower()),
                expected="each field once",
            )
        result[found[0]] = inner
    return value if result.keys() == value.keys() else result


def _text(value: Any, shape: Shape, path: str, as_json: Callable[[Any], str]) -> Any:
    """A value with texts at its leaves. Raises: JsonProblem; _Thorough, by `as_json`."""
    if value is None:
        return None
    if not shape.fields and shape.kind != "struct":
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, str):
            return _encodable(value, path)
        if shape.kind == "string":
            return as_json(value)
        raise _kind(value, path, shape.kind)
    if shape.kind == "struct" and isinstance(value, dict):
        fields = _renamed(value, shape, f"{path}.")
        return {
            name: _text(fields.get(name), inner, f"{path}.{name}", as_json)
            for name, inner in shape.fields
        }
    if shape.kind == "array" and isinstance(value, list):
        return [_text(v, shape.fields[0][1], f"{path}.element", as_json) for v in value]
    if shape.kind == "map" and isinstance(value, dict):
        inner = shape.fields[0][1]
        return [
            (_encodable(k, path), _text(v, inner, f"{path}.value", as_json))
            for k, v in value.items()
        ]
    raise _kind(value, path, shape.kind)


def _encodable(text: str, path: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise JsonProblem(
            "a string contains half a character (a lone surrogate)",
            path=path,
            found=ascii(text)[:60],
            expected="whole characters",
        ) from None
    return str(text)


def _kind(value: Any, path: str, wanted: str) -> JsonProblem:
    kinds = {dict: "an object", list: "an array", bool: "true or false"}
    return JsonProblem(
        "a value is of another kind than its column",
        path=path,
        found=kinds.get(type(value), "a single value"),
        expected={"struct": "an object", "map": "an object", "array": "an array"}.get(
            wanted, wanted
        ),
    )


# A Spark data source that returns the records of CSV and JSON files as texts, with locations.
#
# Every value is the text in the file, in the shape of the requested schema; Spark casts it
# (`casts.py`) and can report the file, line and column of a value that does not fit.


RECORDS_SOURCE = "tandem-records"
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
