"""What metrics and index servers need to know of a table, wherever its controller runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import Field, TypeAdapter

Number = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
"""What a metric can be: a greater number would fail every scrape."""


@dataclass(frozen=True, slots=True)
class TableFigures:
    """A table as of its controller's last round.

    Attributes:
        ready: whether it can be used; `reason` and `message` say why not, or since when.
        adopted: whether it has been adopted, by this operator or by an earlier one.
        log_blocks, log_bytes, log_oldest_ms: of its log; None without one.
        hold: what automatic compaction waits for; None if it is off.
        next_ms: when it starts next, in Unix milliseconds; None if that is not known.
    """

    uid: str
    ready: bool
    reason: str
    message: str = ""
    adopted: bool = False
    version: Number | None = None
    segments: Number | None = None
    files: Number | None = None
    bytes: Number | None = None
    small_files: Number | None = None
    deleted_rows: Number | None = None
    log_blocks: Number | None = None
    log_bytes: Number | None = None
    log_oldest_ms: Number | None = None
    hold: str | None = None
    next_ms: Number | None = None
    chunks_due: Number | None = None

    def as_json(self) -> dict[str, Any]:
        found: dict[str, Any] = _ADAPTER.dump_python(self, mode="json")
        return found

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> TableFigures:
        """Raises: ValueError."""
        return _ADAPTER.validate_python(found)


_ADAPTER: Final = TypeAdapter(TableFigures)
