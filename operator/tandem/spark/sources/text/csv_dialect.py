"""The signs of a CSV text, and the values of one row by them. Pure.

RFC 4180 with configurable signs: separator, quote, escape, comment.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

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
