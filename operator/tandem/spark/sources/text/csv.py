"""CSV text as rows: RFC 4180 with configurable signs. Pure; depends on no store and no Spark.

The result is that of Spark with the same options, with one difference: ambiguous text (a quote that
is not closed, text after a closing quote, a row of another length) is an error that names line and
column, never a guess. Line ends are CR LF, LF and CR, as in Spark; line ends inside quotes belong
to the value.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence

from tandem.spark.sources.text.csv_dialect import WHITE, CsvProblem, Dialect, Row

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
