"""CSV text as rows: RFC 4180 with configurable signs. Pure; depends on no store and no Spark.

The result is that of Spark with the same options, with one difference: ambiguous text (a quote that
is not closed, text after a closing quote, a row of another length) is an error that names line and
column, never a guess. Line ends are CR LF, LF and CR, as in Spark; line ends inside quotes belong
to the value.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

# The signs of a CSV text, and the values of one row by them. Pure.
#
# RFC 4180 with configurable signs: separator, quote, escape, comment.


Row = list[str | None]
WHITE = "".join(map(chr, range(33)))
"""The characters that Spark trims."""


class CsvProblem(Exception):
    """Text that is not a row. `line` counts from 1 in the file; `column` is a name or position."""

    def __init__(
        self, message: str, line: int, column: str = "", found: str = "", expected: str = ""
    ) -> None:
        super().__init__(message)
        self.message, self.line, self.column = message, line, column
        # On one line, since errors of Spark's workers are parsed by line.
        self.found = found.replace("\r", "\\r").replace("\n", "\\n")
        self.expected = expected


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

    @cached_property
    def doubled(self) -> bool:
        """Whether quotes inside quotes are doubled."""
        return self.escape == self.quote

    @cached_property
    def _space(self) -> str:
        # The characters that Spark trims, except the separator, which may be a tab.
        return f"(?:(?!{re.escape(self.sep)})[\\x00-\\x20])*+"

    @cached_property
    def _inside(self) -> str:
        """The pattern of a quoted value's content, up to its closing quote."""
        mark = re.escape(self.quote)
        if self.doubled:
            return f"(?:[^{mark}]++|{mark}{mark})*+"
        if not self.escape:
            return f"[^{mark}]*+"
        sign = re.escape(self.escape)
        return f"(?:[^{mark}{sign}]++|{sign}(?s:.))*+"

    @cached_property
    def _plain(self) -> str:
        """The pattern of an unquoted value."""
        lead = self._space if self.trim_left else ""
        never = f"(?!{lead}{re.escape(self.quote)})" if self.quote else ""
        if len(self.sep) == 1:
            return f"{never}[^{re.escape(self.sep)}]*+"
        return f"{never}(?:(?!{re.escape(self.sep)})(?s:.))*+"

    def _value(self, *, groups: bool) -> str:
        """The pattern of a value; with groups: the quote, the quoted text, the unquoted text."""
        begin = "(" if groups else "(?:"
        if not self.quote:
            return f"{begin}){begin}){begin}{self._plain})"
        before = self._space if self.trim_left else ""
        after = self._space if self.trim_right else ""
        mark = re.escape(self.quote)
        marked = f"{before}{begin}{mark}){begin}{self._inside}){mark}{after}"
        return f"(?:{marked}|{begin}{self._plain}))"

    @cached_property
    def whole(self) -> re.Pattern[str]:
        """Matches an unambiguous row."""
        value = f"{self._value(groups=False)}(?={re.escape(self.sep)}|\\Z)"
        return re.compile(f"{value}(?:{re.escape(self.sep)}{value})*+")

    @cached_property
    def values(self) -> re.Pattern[str]:
        """Finds the values of a row that `whole` matches: quote, quoted text, unquoted text."""
        return re.compile(f"(?:\\A|{re.escape(self.sep)}){self._value(groups=True)}")

    @cached_property
    def _closed(self) -> re.Pattern[str]:
        return re.compile(f"{self._inside}{re.escape(self.quote)}")

    @cached_property
    def _opened(self) -> re.Pattern[str]:
        mark, sep = re.escape(self.quote), re.escape(self.sep)
        lead = self._space if self.trim_left else ""
        until = f"[^{sep}]*+" if len(self.sep) == 1 else f"(?:(?!{sep})(?s:.))*+"
        complete = f"(?:{lead}{mark}{self._inside}{mark}{until}|{self._plain})"
        return re.compile(f"(?:{complete}{sep})*+{lead}{mark}{self._inside}\\Z")

    def open_after(self, line: str, inside: bool) -> bool:
        """Whether a quoted value continues in the next line.

        Args:
            line: the line, including its end.
            inside: whether the line begins inside a quoted value.
        """
        at = 0
        if inside:
            closed = self._closed.match(line)
            if closed is None:
                return True
            at = line.find(self.sep, closed.end())
            if at < 0:
                return False
            at += len(self.sep)
        elif self.comment and line.startswith(self.comment):
            return False
        return self._opened.match(line, at) is not None

    def row(self, text: str, line: int) -> Row:
        """The values of a row without its end. Raises: CsvProblem."""
        if self.whole.fullmatch(text) is None:
            raise self._malformed(text, line)
        return [
            self._quoted(quoted) if mark else self._unquoted(plain)
            for mark, quoted, plain in self.values.findall(text)
        ]

    def _quoted(self, text: str) -> str | None:
        if not text:
            text = self.empty_value
        elif self.escape and self.escape in text:
            if self.doubled:
                text = text.replace(self.quote * 2, self.quote)
            else:
                text = self._escapes.sub(r"\1", text)
        return None if text == self.null_value else text

    @cached_property
    def _escapes(self) -> re.Pattern[str]:
        sign = re.escape(self.escape)
        return re.compile(f"{sign}([{re.escape(self.quote)}{sign}])")

    def _unquoted(self, text: str) -> str | None:
        if self.trim_left:
            text = text.lstrip(WHITE)
        if self.trim_right:
            text = text.rstrip(WHITE)
        return None if not text or text == self.null_value else text

    def _malformed(self, text: str, line: int) -> CsvProblem:
        at = number = 0
        value = re.compile(f"{self._value(groups=False)}(?={re.escape(self.sep)}|\\Z)")
        while (found := value.match(text, at)) is not None:
            number += 1
            at = found.end() + len(self.sep)
        line += text.count("\n", 0, at)
        rest = text[at : at + 60]
        place = str(number + 1)
        closed = re.compile(f"{self._space}{re.escape(self.quote)}").match(text, at)
        if closed is None or self._closed.match(text, closed.end()) is None:
            return CsvProblem(
                "a quoted value is not terminated", line, place, rest, "a closing quote"
            )
        return CsvProblem(
            "text follows a closing quote",
            line,
            place,
            rest,
            f"{self.sep!r} or the end of the line after a quoted value, and quotes inside it "
            + (f"doubled ({self.quote * 2})" if self.doubled else f"as {self.escape}{self.quote}"),
        )


MAX_RECORD = 64 << 20
"""Maximum characters of one row: a quote without an end must not consume a large file."""

_END = re.compile(r"\r\n|\n|\r")


class CsvParser:
    """The rows of a file, or of a part of it that starts at the start of a line.

    Args:
        names: names of the columns; every row must have as many values.
        line: the line of the file, from 1, at which the text starts.
        inside: whether the text starts inside a quoted value; the rest of that value belongs to the
            previous part, and is left out.
    """

    def __init__(
        self, dialect: Dialect, names: Sequence[str], line: int = 1, *, inside: bool = False
    ) -> None:
        self.dialect = dialect
        self._names = names
        self._line = line
        self._skipping = inside
        self._pending: list[str] = []
        self._begun = line
        self._size = 0

    @property
    def pending(self) -> bool:
        """Whether a row continues in the next line."""
        return bool(self._pending)

    def rows(self, text: str) -> tuple[list[Row], list[int]]:
        """The rows that end in a text of whole lines, and the lines at which they start.

        Raises: CsvProblem.
        """
        quote = self.dialect.quote
        if not (self._skipping or self._pending or (quote and quote in text)):
            quick = self._quick(text)
            if quick is not None:
                return quick
        rows: list[Row] = []
        lines: list[int] = []
        for line in io.StringIO(text, newline=""):
            row = self.take(line)
            if row is not None:
                rows.append(row)
                lines.append(self._begun)
        return rows, lines

    def _quick(self, text: str) -> tuple[list[Row], list[int]] | None:
        """Rows of lines without quotes, comments, blanks or trimming; None if there may be any."""
        dialect = self.dialect
        width = len(self._names)
        if width == 1 or dialect.comment or dialect.trim_left or dialect.trim_right:
            return None
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        lines = text.split("\n")
        if not lines[-1]:
            lines.pop()
        sep = dialect.sep
        rows = [line.split(sep) for line in lines]
        if set(map(len, rows)) - {width} or width > dialect.max_columns:
            return None
        first = self._line
        self._line += len(lines)
        nulls = {"", dialect.null_value}
        found: list[Row] = [[None if v in nulls else v for v in row] for row in rows]
        return self._bounded(found, first), list(range(first, first + len(lines)))

    def _bounded(self, rows: list[Row], line: int) -> list[Row]:
        if self.dialect.max_chars >= 0:
            for number, row in enumerate(rows):
                self._check(row, line + number)
        return rows

    def take(self, line: str) -> Row | None:
        """Add one line, including its end; returns the row that it completes, if any. Raises:
        CsvProblem."""
        dialect = self.dialect
        number = self._line
        self._line += 1
        if self._skipping:
            self._skipping = dialect.open_after(line, True)
            return None
        if self._pending:
            self._pending.append(line)
            self._size += len(line)
            if self._size > MAX_RECORD:
                raise self._never()
            if dialect.quote not in line or dialect.open_after(line, True):
                return None
            text, self._pending = "".join(self._pending), []
            return self._row(_without_end(text), self._begun)
        bare = _without_end(line)
        if not bare.strip(WHITE) and dialect.sep not in bare:
            return None
        if dialect.comment and bare.startswith(dialect.comment):
            return None
        self._begun = number
        if dialect.quote and dialect.quote in line and dialect.open_after(line, False):
            self._pending, self._size = [line], len(line)
            return None
        return self._row(bare, number)

    @property
    def begun(self) -> int:
        """The line at which the last row started."""
        return self._begun

    def past(self, text: str, lines: int) -> tuple[str, int]:
        """A text without its first lines, and how many of them are still to skip after it."""
        at = 0
        while lines and at < len(text):
            found = _END.search(text, at)
            at = len(text) if found is None else found.end()
            lines -= 1
            self._line += 1
        return text[at:], lines

    def first(self, text: str) -> tuple[Row, int] | None:
        """The first row, if it ends in this text, and the number of lines up to its end.
        Raises: CsvProblem."""
        for line in io.StringIO(text, newline=""):
            row = self.take(line)
            if row is not None:
                return row, self._line - 1
        return None

    def complete(self, text: str) -> Row | None:
        """The row that continues in this text, if it ends in it; the rest is not parsed. Raises:
        CsvProblem."""
        for line in io.StringIO(text, newline=""):
            row = self.take(line)
            if not self._pending:
                return row
        return None

    def close(self) -> None:
        """End the text. Raises: CsvProblem if a row is incomplete."""
        if self._pending:
            raise self._never()

    def _never(self) -> CsvProblem:
        begun = self._pending[0]
        return CsvProblem(
            "a quoted value is not terminated",
            self._begun,
            found=_without_end(begun)[:120],
            expected="a closing quote",
        )

    def _row(self, text: str, line: int) -> Row:
        try:
            row = self.dialect.row(text, line)
        except CsvProblem as problem:
            if int(problem.column) <= len(self._names):
                problem.column = self._names[int(problem.column) - 1]
            raise
        self._check(row, line)
        return row

    def _check(self, row: Row, line: int) -> None:
        names, dialect = self._names, self.dialect
        if names and len(row) != len(names):
            more = len(row) > len(names)
            raise CsvProblem(
                "a row does not have one value for each column",
                line,
                str(len(names) + 1) if more else names[len(row)],
                f"{len(row)} values",
                f"{len(names)}: {', '.join(names)}"[:300],
            )
        if len(row) > dialect.max_columns:
            raise CsvProblem(
                "a row has more values than maxColumns allows",
                line,
                str(dialect.max_columns + 1),
                f"{len(row)} values",
                f"at most {dialect.max_columns}",
            )
        if dialect.max_chars >= 0:
            for number, value in enumerate(row):
                if value is not None and len(value) > dialect.max_chars:
                    raise CsvProblem(
                        "a value is longer than maxCharsPerColumn allows",
                        line,
                        names[number] if names else str(number + 1),
                        f"{len(value)} characters",
                        f"at most {dialect.max_chars}",
                    )


def _without_end(line: str) -> str:
    if line.endswith("\r\n"):
        return line[:-2]
    return line[:-1] if line.endswith(("\n", "\r")) else line


def lines_in(text: str) -> int:
    """The number of line ends."""
    if "\r" not in text:
        return text.count("\n")
    return text.count("\n") + text.count("\r") - text.count("\r\n")


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
