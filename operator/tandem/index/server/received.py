"""Checks what a client sends to an index server, and what it receives. Pure.

Versions of the two may differ: an answer that is not as this version expects it is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from tandem.errors import InvalidSpec, Unreachable
from tandem.index.answers import Splits
from tandem.index.portions import PathRange, Portions
from tandem.index.server.messages import Message, portions_from, splits_from
from tandem.index.window import Head
from tandem.text import clean

M = TypeVar("M", bound=Message)


def one(tables: Sequence[pa.Table]) -> pa.Table:
    if len(tables) != 1:
        raise broken(f"{len(tables)} tables", "one")
    return tables[0]


def whole(model: type[M], message: object) -> M:
    try:
        return model.model_validate(message)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        found = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise broken(found, f"a {model.__name__}") from error


def received_splits(head: Head, table: pa.Table, paths: PathRange | None = None) -> Splits:
    with reading():
        found = splits_from(head, table)
        if paths is not None:
            _require_within(found.files["path"], paths)
    return found


def _require_within(found: pa.ChunkedArray, paths: PathRange) -> None:
    """Other portions have what lies beyond. Raises: ValueError."""
    if not paths.mask(found).all():
        raise ValueError("there are files of other portions")
    if pc.count_distinct(found).as_py() != len(found):
        raise ValueError("a file is there twice")


def received_portions(head: Head, splits: int, table: pa.Table) -> Portions:
    with reading():
        return portions_from(head, splits, table)


@contextmanager
def reading() -> Iterator[None]:
    """Reads a table of an answer. Raises: Unreachable if it is not as this version expects it."""
    try:
        yield
    except (KeyError, IndexError, ValueError, pa.ArrowException) as error:
        found = f"{type(error).__name__}: {error}"[:200]
        raise broken(found, "the tables of this version") from error


@contextmanager
def sending() -> Iterator[None]:
    """Makes a question. Raises: InvalidSpec if a server would not take it."""
    try:
        yield
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InvalidSpec(
            "the question cannot be sent to an index server",
            field=".".join(map(str, first["loc"])),
            found=clean(str(first["input"])),
            expected=str(first["msg"]),
            remedy="Shorten or correct it, or ask without a server",
        ) from error


def broken(found: str, expected: str) -> Unreachable:
    return Unreachable("an answer of the index server is not whole", found=found, expected=expected)
