"""The records of CSV and JSON files, as texts with locations. Depends on no Spark.

Every value is the text in the file, in the shape of the requested schema; Spark casts it
(`casts.py`) and can report the file, line and column of a value that does not fit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import pyarrow as pa

from tandem.delta.protocol import HIDDEN_PREFIX
from tandem.delta.schema import parse, to_arrow_type
from tandem.jobs.formats import Format
from tandem.spark.runtime.row_files import InputSplit
from tandem.spark.sources.csv_text import CsvParser, Dialect, has_header
from tandem.spark.sources.json_text import JsonOptions, JsonRows
from tandem.spark.sources.text_files import lines_in, read_text, split_lines
from tandem.storage import Store

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


Batch = tuple[list[Any], Sequence[int]]
"""Arrow arrays of the columns, and the line of each row."""


def records(store: Store, work: RecordsWork, split: InputSplit) -> Iterator[Batch]:
    """The records of a part of a file. Raises: StatementFailed, SourceUnreadable, StorageError."""
    return {"Csv": _csv, "Json": _json, "Lines": _lines}[work.text_format](store, work, split)


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
