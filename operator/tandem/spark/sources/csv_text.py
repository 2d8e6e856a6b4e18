"""CSV text as Arrow arrays of texts: RFC 4180 with configurable signs. Depends on no Spark.

The result is that of Spark with the same options, with one difference: ambiguous text (a quote that
is not closed, text after a closing quote, a row of another length) is an error that names line and
column, never a guess. Line ends are CR LF, LF and CR, as in Spark; line ends inside quotes belong
to the value.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice

import pyarrow as pa
from pyarrow import csv

from tandem.errors import InvalidSpec, StatementFailed
from tandem.remedies import HEADER, NO_HEADER
from tandem.spark.runtime.listing import FolderColumn, ListedSource, check_unique_names
from tandem.spark.sources.text_files import WHITE, lines_in, place, read_text

# The signs of a CSV text, and the values of one row by them.


Row = list[str | None]


@dataclass(frozen=True)
class Dialect:
    """The signs of a CSV text; the fields have the names of Spark's options.

    `quote` and `escape` may be empty for none. An `escape` other than the quote precedes quotes,
    and itself, inside quoted values; elsewhere it is text.
    """

    sep: str = ","
    quote: str = '"'
    escape: str = '"'
    comment: str = ""
    null_value: str = ""
    empty_value: str = ""
    trim_left: bool = False
    trim_right: bool = False
    max_columns: int = 20_480
    max_chars: int = -1

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Dialect:
        """From options under their canonical names, already checked (`options`)."""

        def yes(name: str) -> bool:
            return options.get(name, "false").lower() == "true"

        return cls(
            sep=options.get("sep", ","),
            quote=options.get("quote", '"'),
            escape=options.get("escape", '"'),
            comment=options.get("comment", ""),
            null_value=options.get("nullValue", ""),
            empty_value=options.get("emptyValue", ""),
            trim_left=yes("ignoreLeadingWhiteSpace"),
            trim_right=yes("ignoreTrailingWhiteSpace"),
            max_columns=int(options.get("maxColumns", "20480")),
            max_chars=int(options.get("maxCharsPerColumn", "-1")),
        )

    @property
    def doubled(self) -> bool:
        """Whether quotes inside quotes are doubled."""
        return self.escape == self.quote

    @cached_property
    def patterns(self) -> _Patterns:
        mark, sign, sep = map(re.escape, (self.quote, self.escape, self.sep))
        # The characters that Spark trims, except the separator, which may be a tab.
        space = f"(?:(?!{sep})[\\x00-\\x09\\x0b\\x0c\\x0e-\\x20])*+"
        lead, after = space * self.trim_left, space * self.trim_right
        # A quoted value's content, up to its closing quote.
        if not self.quote:
            inside = "(?!)"
        elif self.doubled:
            inside = f"(?:[^{mark}]++|{mark}{mark})*+"
        elif not self.escape:
            inside = f"[^{mark}]*+"
        else:
            inside = f"(?:[^{mark}{sign}]++|{sign}(?s:.))*+"
        # Up to the next separator.
        until = f"[^{sep}\\r\\n]*+" if len(self.sep) == 1 else f"(?:(?!{sep})[^\\r\\n])*+"
        begin = f"{lead}{mark}"
        plain = f"(?!{begin}){until}" if self.quote else until
        value = f"(?:{begin}{inside}{mark}{after}|{plain})"
        loose = f"(?:{begin}{inside}{mark}{until}|{plain})"
        comment = f"|{re.escape(self.comment)}[^\\r\\n]*+" if self.comment else ""
        row = f"{value}(?:{sep}{value})*+"
        return _Patterns(
            record=re.compile(f"(?:{space}{comment}){_END}|({row}){_END}"),
            value=re.compile(f"{value}(?={sep}|{_END})"),
            values=re.compile(f"(?:\\A|{sep})(?:{lead}({mark})({inside}){mark}{after}|({plain}))"),
            begin=re.compile(begin),
            closed=re.compile(f"{inside}{mark}"),
            rest=re.compile(f"{inside}{mark}{until}(?:{sep}{loose})*+{_END}"),
            opened=re.compile(f"(?:{loose}{sep})*+{begin}{inside}\\Z"),
            escaped=re.compile(f"{sign}([{mark}{sign}])" if self.escape else "(?!)"),
        )

    def open_after(self, line: str, inside: bool) -> bool:
        """Whether a quoted value continues in the next line.

        Args:
            line: the line, including its end.
            inside: whether the line begins inside a quoted value.
        """
        at = 0
        if inside:
            closed = self.patterns.closed.match(line)
            if closed is None:
                return True
            at = line.find(self.sep, closed.end())
            if at < 0:
                return False
            at += len(self.sep)
        elif self.comment and line.startswith(self.comment):
            return False
        return self.patterns.opened.match(line, at) is not None

    def row(self, text: str) -> Row:
        """The values of an unambiguous row, without its end."""
        if not self.quote or self.quote not in text:
            return [self._unquoted(value) for value in text.split(self.sep)]
        return [
            self._quoted(quoted) if mark else self._unquoted(plain)
            for mark, quoted, plain in self.patterns.values.findall(text)
        ]

    def _quoted(self, text: str) -> str | None:
        if not text:
            text = self.empty_value
        elif self.escape and self.escape in text:
            if self.doubled:
                text = text.replace(self.quote * 2, self.quote)
            else:
                text = self.patterns.escaped.sub(r"\1", text)
        return None if text == self.null_value else text

    def _unquoted(self, text: str) -> str | None:
        if self.trim_left:
            text = text.lstrip(WHITE)
        if self.trim_right:
            text = text.rstrip(WHITE)
        return None if not text or text == self.null_value else text


_END = r"(?:\r\n|\n|\r|\Z)"


@dataclass(frozen=True)
class _Patterns:
    """`record`: a row with its end, or a blank line or comment; `value`: an unambiguous value of a
    row; `values`: finds the quote, quoted text and unquoted text of each; `begin`: up to a quoted
    text; `closed`: from there up to its closing quote; `rest`: from there up to the end of the
    record; `opened`: a line at whose end a quoted value is open; `escaped`: finds what an escape
    precedes."""

    record: re.Pattern[str]
    value: re.Pattern[str]
    values: re.Pattern[str]
    begin: re.Pattern[str]
    closed: re.Pattern[str]
    rest: re.Pattern[str]
    opened: re.Pattern[str]
    escaped: re.Pattern[str]


# The rows of a text.


MAX_RECORD = 64 << 20
"""Maximum characters of one row: a quote without an end must not consume a large file."""


class CsvParser:
    """The rows of a file, or of a part of it that starts at the start of a line. All methods raise
    StatementFailed for ambiguous text.

    Args:
        names: names of the columns; every row must have as many values. None of them: any number.
        path: the file, for errors.
        line: the line of the file, from 1, at which the text starts.
        inside: whether the text starts inside a quoted value; the rest of that record belongs to
            the previous part, and is left out.
        header: whether the first row is left out.
    """

    def __init__(
        self,
        dialect: Dialect,
        names: Sequence[str],
        path: str,
        line: int = 1,
        *,
        inside: bool = False,
        header: bool = False,
    ) -> None:
        self._dialect = dialect
        self._names = names
        self._path = path
        self._line = line
        self._inside = inside
        self._header = header
        self._rest = ""

    @property
    def pending(self) -> bool:
        """Whether a row continues in the next text."""
        return bool(self._rest) and not self._inside

    def batch(self, text: str, *, pending: bool = False) -> tuple[list[pa.Array], Sequence[int]]:
        """The columns of the rows that end in a text of whole lines, and the lines at which they
        start. `pending`: only of the row that continues in this text."""
        text, self._rest = self._rest + text, ""
        if self._header:
            first = next(self._records(text), None)
            text, self._header = ("", True) if first is None else (text[first[2] :], False)
        columns = None if pending or self._inside else self._plain(text)
        if columns is not None:
            begun, self._line = self._line, self._line + len(columns[0])
            return columns, range(begun, self._line)
        found = list(islice(self._records(text), 1 if pending else None))
        by_column = zip(*(row for row, _, _ in found), strict=True)
        arrays = [pa.array(column, pa.string()) for column in by_column]
        return arrays, [line for _, line, _ in found]

    def first(self, texts: Iterable[str]) -> Row | None:
        """The first row of a file; None if there is none."""
        for text in texts:
            text, self._rest = self._rest + text, ""
            for row, _, _ in self._records(text):
                return row
        self.close()
        return None

    def close(self) -> None:
        """End the text, which must not end within a row."""
        if self.pending:
            raise self._never(self._rest)

    def _plain(self, text: str) -> list[pa.Array] | None:
        """The columns of text without quotes, comments, blank lines and trimming; None if there may
        be any, or an error, which is to be located."""
        dialect, width = self._dialect, len(self._names)
        if (
            width == 1
            or width > dialect.max_columns
            or dialect.max_chars >= 0
            or dialect.trim_left
            or dialect.trim_right
            or not (len(dialect.sep) == 1 and dialect.sep.isascii())
            or any(sign and sign in text for sign in (dialect.quote, dialect.comment))
            or not text
            or text[0] == "\ufeff"  # which Arrow leaves out
        ):
            return None
        data = text.encode()
        names = [str(number) for number in range(width)]
        try:
            table = csv.read_csv(
                pa.py_buffer(data),
                csv.ReadOptions(use_threads=False, block_size=len(data) + 1, column_names=names),
                csv.ParseOptions(delimiter=dialect.sep, quote_char=False),
                csv.ConvertOptions(
                    check_utf8=False,
                    column_types=dict.fromkeys(names, pa.string()),
                    null_values=["", dialect.null_value],
                    strings_can_be_null=True,
                ),
            )
        except pa.ArrowInvalid:
            return None
        if len(table) < lines_in(text) + (text[-1] not in "\r\n"):
            return None  # a blank line
        return [column.combine_chunks() for column in table.columns]

    def _records(self, text: str) -> Iterator[tuple[Row, int, int]]:
        """The rows of a text of whole lines, each with the line at which it starts, and its end. A
        row that is incomplete is kept for the next text."""
        dialect, at = self._dialect, 0
        patterns = dialect.patterns
        if self._inside:
            rest = patterns.rest.match(text)
            if rest is None:
                self._rest = text
                return
            at, self._inside = rest.end(), False
            self._line += lines_in(rest[0])
        while at < len(text):
            found = patterns.record.match(text, at)
            if found is None:
                self._require_open(text, at)
                self._rest = text[at:]
                return
            line, at = self._line, found.end()
            self._line += lines_in(found[0])
            if found[1] is not None:
                row = dialect.row(found[1])
                self._check(row, line)
                yield row, line, at

    def _require_open(self, text: str, at: int) -> None:
        """Check that a row is ambiguous only because it is incomplete."""
        patterns, start, number = self._dialect.patterns, at, 0
        while (found := patterns.value.match(text, at)) is not None:
            number += 1
            at = found.end() + len(self._dialect.sep)
        begin = patterns.begin.match(text, at)
        if begin is not None and patterns.closed.match(text, begin.end()) is None:
            if len(text) - start > MAX_RECORD:
                raise self._never(text[start:])
            return
        quote = f"as {self._dialect.escape}{self._dialect.quote}"
        if self._dialect.doubled:
            quote = f"doubled ({self._dialect.quote * 2})"
        raise self._error(
            "text follows a closing quote",
            self._line + lines_in(text[start:at]),
            self._name(number),
            text[at : at + 60],
            f"{self._dialect.sep!r} or the end of the line after a quoted value, and quotes inside "
            f"it {quote}",
        )

    def _never(self, rest: str) -> StatementFailed:
        found = re.split("[\r\n]", rest, maxsplit=1)[0][:120]
        message = "a quoted value is not terminated"
        return self._error(message, self._line, "", found, "a closing quote")

    def _check(self, row: Row, line: int) -> None:
        names, dialect = self._names, self._dialect
        if names and len(row) != len(names):
            raise self._error(
                "a row does not have one value for each column",
                line,
                self._name(min(len(row), len(names))),
                f"{len(row)} values",
                f"{len(names)}: {', '.join(names)}"[:300],
            )
        if len(row) > dialect.max_columns:
            raise self._error(
                "a row has more values than maxColumns allows",
                line,
                str(dialect.max_columns + 1),
                f"{len(row)} values",
                f"at most {dialect.max_columns}",
            )
        for number, value in enumerate(row if dialect.max_chars >= 0 else ()):
            if value is not None and len(value) > dialect.max_chars:
                raise self._error(
                    "a value is longer than maxCharsPerColumn allows",
                    line,
                    self._name(number),
                    f"{len(value)} characters",
                    f"at most {dialect.max_chars}",
                )

    def _name(self, number: int) -> str:
        return self._names[number] if number < len(self._names) else str(number + 1)

    def _error(
        self, message: str, line: int, column: str, found: str, expected: str
    ) -> StatementFailed:
        return StatementFailed(
            message,
            resource=place(self._path, line, column),
            # On one line, since errors of Spark's workers are parsed by line.
            found=found.replace("\r", "\\r").replace("\n", "\\n"),
            expected=expected,
            remedy="Correct the source, or its options",
        )


def part_effect(texts: Iterator[str], dialect: Dialect | None) -> tuple[int, bool, bool]:
    """The effect of a part of a file on the next part: its number of line ends, and whether a
    quoted value is open at its end, if none was open at its start, and if one was. `dialect`: of
    CSV; None for other formats."""
    lines, outside, inside = 0, False, True
    for text in texts:
        lines += lines_in(text)
        if dialect is None or not dialect.quote or dialect.quote not in text:
            continue
        for line in io.StringIO(text, newline=""):
            if dialect.quote in line:
                same = outside == inside
                outside = dialect.open_after(line, outside)
                inside = outside if same else dialect.open_after(line, inside)
    return lines, outside, inside


# The columns of a file.


def csv_columns(
    source: ListedSource,
    path: str,
    options: Mapping[str, str],
    table: Sequence[str],
    field: str,
    folders: Sequence[FolderColumn] = (),
) -> tuple[str, ...] | None:
    """The names of the columns of a file, None for one without a row.

    Args:
        table: the table's columns, which a file without a header has in this order, without those
            that come from `folders`.
        field: the field of the resource that describes the source.
    Raises: InvalidSpec, StatementFailed, SourceUnreadable, StorageError.
    """
    texts = read_text(source.store, path, options.get("encoding", "utf-8"))
    first = CsvParser(Dialect.of(options), (), path).first(texts)
    if first is None:
        return None
    file = f"{source.store.location}/{path}"
    if has_header(options):
        return _header(first, file)
    below = {column.name.lower() for column in folders if column.overrides}
    all_ = {column.name.lower() for column in folders}
    table = [name for name in table if name.lower() not in below]
    if len(first) != len(table):
        shorter = [name for name in table if name.lower() not in all_]
        if len(first) == len(shorter):
            table = shorter
    if len(first) != len(table):
        raise InvalidSpec(
            "a CSV source without a header has a different number of columns",
            resource=file,
            field=f"{field}.options.header",
            found=len(first),
            expected=str(len(table)),
            remedy=f"If the first line names the columns, {HEADER.in_resource}",
        )
    if "header" not in options and _names_columns(first, table):
        raise InvalidSpec(
            "the first line of a CSV source names columns, and would be read as a row",
            resource=file,
            field=f"{field}.options.header",
            found=", ".join(str(value) for value in first)[:300],
            expected="the option header",
            remedy=f"If the first line names the columns, {HEADER.in_resource}; "
            f"{NO_HEADER.in_resource}",
        )
    return tuple(table)


def has_header(options: Mapping[str, str]) -> bool:
    """Whether the first row of each file names its columns."""
    return options.get("header", "false").lower() == "true"


def _header(row: Row, file: str) -> tuple[str, ...]:
    names = tuple("" if name is None else name for name in row)
    if "" in names:
        raise InvalidSpec(
            "a column of the header has no name",
            resource=file,
            found=", ".join(names)[:300],
            expected="a name for each column",
            remedy="Correct the header, or the separator (option sep)",
        )
    check_unique_names(names, file)
    return names


def _names_columns(row: Row, table: Sequence[str]) -> bool:
    """Whether more than half of the values are names of the table's columns."""
    known = {name.lower() for name in table}
    names = sum(value is not None and value.strip().lower() in known for value in row)
    return 2 * names > len(row)
