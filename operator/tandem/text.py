"""Foreign names in messages. Pure.

Engines, operations and paths in the log are free text of any writer: they are shortened, and
characters that move a terminal's cursor or change the direction of text are removed.
"""

from __future__ import annotations

from collections.abc import Collection

LONGEST_NAME = 60
"""Characters of one name in a message."""
MOST_FILES = 3
"""Files that a message names; the others are counted."""


def clean(text: str, longest: int = LONGEST_NAME) -> str:
    """`text` on one line, of printable characters, shortened in its middle."""
    if len(text) > 4 * longest:
        text = text[: 2 * longest] + text[-2 * longest :]
    # Control characters, and those that change the direction of text, are not printable.
    kept = "".join(char if char.isprintable() else " " for char in text).strip()
    if len(kept) <= longest:
        return kept
    half = (longest - 1) // 2
    return f"{kept[: longest - 1 - half]}…{kept[-half:]}"


def quoted(text: str) -> str:
    """A name in backticks; backticks inside it are replaced."""
    return f"`{clean(text).replace('`', chr(39))}`"


def counted(number: int, one: str, many: str = "") -> str:
    """`1 file`, `2,113 files`"""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def files_in_words(paths: Collection[str], most: int = MOST_FILES) -> str:
    """`file a`, `files a, b, c and 12 more`; "" for none."""
    if not paths:
        return ""
    names = [clean(path) for path in sorted(paths)[:most]]
    more = len(paths) - len(names)
    head = "file " if len(paths) == 1 else "files "
    return head + ", ".join(names) + (f" and {more:,} more" if more else "")


def listed(items: Collection[str]) -> str:
    """`a`, `a and b`, `a, b and c`"""
    *first, last = items
    return f"{', '.join(first)} and {last}" if first else last


def human_bytes(size: int) -> str:
    """`1.2 MiB`"""
    if size < 1024:
        return f"{size} B"
    value = float(size)
    for unit in ("KiB", "MiB", "GiB", "TiB", "PiB"):
        value /= 1024
        if value < 1024:
            return f"{value:.1f} {unit}"
    return f"{value / 1024:.1f} EiB"
