"""The text of one expression, and errors with a position in it.

Every refusal of a statement uses `ExpressionText.error`, so that all of them name the resource, the
field, the line and the column, and show the line with a caret below the position.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

from tandem.errors import InvalidStatement

_WIDTH = 60


@dataclass(frozen=True)
class ExpressionText:
    """An expression as the user typed it.

    `resource` and `field` are its location, for example `TableUpdate/late` and
    `spec.update.where`.
    """

    text: str
    resource: str = ""
    field: str = ""

    def position(self, at: int) -> tuple[int, int]:
        """Line and column, from 1, of the character at an offset (the end counts as one)."""
        before = self.text[:at]
        return before.count("\n") + 1, at - (before.rfind("\n") + 1) + 1

    def snippet(self, at: int) -> str:
        """The line around an offset, at most about 60 characters, and a caret below it."""
        start = self.text.rfind("\n", 0, at) + 1
        end = self.text.find("\n", at)
        line = self.text[start : len(self.text) if end < 0 else end]
        column = at - start
        first = max(0, min(column - _WIDTH // 2, len(line) - _WIDTH))
        shown = line[first : first + _WIDTH]
        head = "..." if first else ""
        tail = "..." if first + _WIDTH < len(line) else ""
        return f"{head}{visible(shown)}{tail}\n{' ' * (len(head) + column - first)}^"

    def error(
        self, at: int, message: str, *, found: object = "", expected: str = "", remedy: str = ""
    ) -> InvalidStatement:
        """An InvalidStatement that points at an offset of the text."""
        line, column = self.position(at)
        return InvalidStatement(
            f"{message} at line {line}, column {column}",
            resource=self.resource,
            field=self.field,
            found=found,
            expected=expected,
            remedy=remedy,
            position=(line, column),
            snippet=self.snippet(at),
        )


def visible(text: str) -> str:
    """The text on one line: characters that are invisible or reorder a terminal become `?`.

    One character stays one character, so that carets still have the right position.
    """
    return "".join(
        char
        if char.isprintable() and unicodedata.category(char) not in {"Mn", "Me", "Cf"}
        else " "
        if char == "\t"
        else "?"
        for char in text
    )
