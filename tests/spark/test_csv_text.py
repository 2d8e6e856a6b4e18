"""CSV text as rows: as Python's own reader has it where there is one meaning, an error elsewhere;
the same rows however a file is cut."""

from __future__ import annotations

import csv
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.lake.memory_store import MemoryStore
from tandem.errors import StatementFailed
from tandem.spark.sources import text_files
from tandem.spark.sources.csv_text import CsvParser, Dialect, Row, part_effect
from tandem.spark.sources.text_files import place, read_text
from tandem.spark.sources.text_frames import plan
from tandem.spark.sources.text_records import PartStart, TextFile

RFC = Dialect()
BACKSLASH = Dialect(escape="\\")
BARE = Dialect(trim_left=True, trim_right=True)
NA = Dialect(null_value="NA")


def rows_of(text: str, dialect: Dialect = RFC, names: str = "ab") -> list[Row]:
    parser = CsvParser(dialect, tuple(names), "f")
    found = [row for row, _ in rows_in(parser, text)]
    parser.close()
    return found


def rows_in(parser: CsvParser, text: str, *, pending: bool = False) -> list[tuple[Row, int]]:
    columns, lines = parser.batch(text, pending=pending)
    rows = [list(row) for row in zip(*(column.to_pylist() for column in columns), strict=True)]
    return list(zip(rows, lines, strict=True))


@pytest.mark.parametrize(
    ("text", "dialect", "expected"),
    [
        ('1,"a\nb"\n2,c\n', Dialect(), [["1", "a\nb"], ["2", "c"]]),
        ('1,"a\r\nb"\r\n2,c\r', Dialect(), [["1", "a\r\nb"], ["2", "c"]]),
        ('1,"x, ""y"""\n', Dialect(), [["1", 'x, "y"']]),
        ('1,5" pipe\n', Dialect(), [["1", '5" pipe']]),
        ('"a\n1,b",c\n', Dialect(), [["a\n1,b", "c"]]),
        ('1,""\n,\n', Dialect(), [["1", None], [None, None]]),
        ('"",\nNA,"NA"\n', NA, [["", None], [None, None]]),
        ('1,"a\\"b\\\\c\\d"\n', BACKSLASH, [["1", 'a"b\\c\\d']]),
        ('1 , "x y" \n', BARE, [["1", "x y"]]),
        ("1,b\r2,c\r", Dialect(), [["1", "b"], ["2", "c"]]),
        ("1,b\n\n  \n2,c", Dialect(), [["1", "b"], ["2", "c"]]),
        ('#"\n1,b\n', Dialect(comment="#"), [["1", "b"]]),
        ("1||b|c\n", Dialect(sep="||"), [["1", "b|c"]]),
        ("\t\n1\tb\n", Dialect(sep="\t"), [[None, None], ["1", "b"]]),
        ('"1,"b"\n', Dialect(quote=""), [['"1', '"b"']]),
        ("1,a\u2028b\x85\n", Dialect(), [["1", "a\u2028b\x85"]]),
    ],
)
def test_a_text_with_one_meaning_is_read(text: str, dialect: Dialect, expected: list[Row]) -> None:
    assert rows_of(text, dialect) == expected


@pytest.mark.parametrize(
    ("text", "dialect", "line", "column", "message"),
    [
        ('1,a\n2,"b\nc\n', Dialect(), 2, "", "not terminated"),
        ('1,a\n2,"b"c\n', Dialect(), 2, "b", "follows a closing quote"),
        ('1,"b" \n', Dialect(), 1, "b", "follows a closing quote"),
        ('1,"a\\"b"\n', Dialect(), 1, "b", "follows a closing quote"),
        ('1,"a""b"\n', BACKSLASH, 1, "b", "follows a closing quote"),
        ('"x\ny",b\n1\n', Dialect(), 3, "b", "one value for each column"),
        ("1,b,c\n", Dialect(), 1, "3", "one value for each column"),
        ("1,bcd\n", Dialect(max_chars=2), 1, "b", "maxCharsPerColumn"),
        ('1,"bcd"\n', Dialect(max_chars=2), 1, "b", "maxCharsPerColumn"),
        ("1,b\n", Dialect(max_columns=1), 1, "2", "maxColumns"),
    ],
)
def test_a_text_without_one_meaning_is_an_error_with_its_place(
    text: str, dialect: Dialect, line: int, column: str, message: str
) -> None:
    with pytest.raises(StatementFailed, match=message) as found:
        rows_of(text, dialect)
    assert found.value.resource == place("f", line, column)


@pytest.mark.parametrize("text", ["\n1,b\n", "1,b\n\n", "1,b\n \n", "\ufeff1,b\n", "1,b\r\r2,c"])
def test_text_that_arrow_would_read_otherwise_is_read_as_spark_does(text: str) -> None:
    """Arrow leaves out a byte order mark, and counts no blank lines."""
    found = rows_in(CsvParser(RFC, ("a", "b"), "f"), text)
    lines = text.replace("\r", "\n").split("\n")
    assert found == [(row.split(","), n) for n, row in enumerate(lines, 1) if row.strip()]


def test_a_header_is_the_first_row_and_may_span_texts() -> None:
    parser = CsvParser(RFC, ("a", "b"), "f", header=True)
    texts = ['\n"a\n', 'b",c\n1,2\n', "3,4\n"]
    assert [rows_in(parser, text) for text in texts] == [[], [(["1", "2"], 4)], [(["3", "4"], 5)]]
    assert CsvParser(RFC, (), "f").first(texts) == ["a\nb", "c"]


CELL = st.text('ab",\n\r\u00e9 ', max_size=5)
TABLE = st.lists(st.tuples(CELL, CELL), max_size=8)


@given(TABLE, st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]), st.sampled_from(["\n", "\r\n"]))
def test_csv_of_other_writers_is_read_as_written(
    table: list[tuple[str, str]], quoting: int, end: str
) -> None:
    if quoting == csv.QUOTE_MINIMAL:  # Python writes a lone CR without quotes
        table = [(a.replace("\r", ""), b.replace("\r", "")) for a, b in table]
    out = io.StringIO()
    csv.writer(out, quoting=quoting, lineterminator=end).writerows(table)  # type: ignore[arg-type]
    expected: list[Row] = [[value or None for value in row] for row in table]
    assert rows_of(out.getvalue()) == expected


@settings(max_examples=60)
@given(TABLE, st.integers(3, 40), st.integers(2, 9))
def test_however_a_file_is_cut_its_rows_are_the_same(
    table: list[tuple[str, str]], size: int, block: int
) -> None:
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n").writerows(table)
    data = out.getvalue().encode()
    store = MemoryStore()
    store.put("f", data)
    dialect = Dialect()
    before, text_files.BLOCK_BYTES = text_files.BLOCK_BYTES, block
    try:
        found = _in_parts(store, len(data), size, dialect)
    finally:
        text_files.BLOCK_BYTES = before
    assert found == rows_in(CsvParser(dialect, ("a", "b"), "f"), out.getvalue())


def _in_parts(
    store: MemoryStore, length: int, size: int, dialect: Dialect
) -> list[tuple[Row, int]]:
    found: list[tuple[Row, int]] = []
    begin = PartStart()
    for task in plan([TextFile(path="f", size=length)], size):
        for split in task.splits:
            span = split.of(length)
            texts = list(read_text(store, "f", "utf-8", span.start, span.stop))
            parser = CsvParser(dialect, ("a", "b"), "f", begin.line, inside=begin.inside)
            for text in texts:
                found += rows_in(parser, text)
            if parser.pending:
                for text in read_text(store, "f", "utf-8", span.stop):
                    found += rows_in(parser, text, pending=True)
                    if not parser.pending:
                        break
            parser.close()
            ends, outside, inside = part_effect(iter(texts), dialect)
            begin = PartStart(line=begin.line + ends, inside=inside if begin.inside else outside)
    return found
