"""Checks what a client sends to an index server, and what it receives. Pure.

Versions of the two may differ: an answer that is not as this version expects it is none.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import pyarrow as pa
from pydantic import ValidationError

from tandem.errors import InvalidSpec, Unreachable
from tandem.index.answers import Splits
from tandem.index.server.messages import Message, splits_from
from tandem.index.window import Head

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


def received_splits(head: Head, table: pa.Table) -> Splits:
    with reading():
        return splits_from(head, table)


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
        first = error.errors(include_url=False, include_input=False)[0]
        raise InvalidSpec(
            "the question cannot be sent to an index server",
            field=".".join(map(str, first["loc"])),
            found=str(first["msg"]),
            expected="a question within the limits of index servers",
        ) from error


def broken(found: str, expected: str) -> Unreachable:
    return Unreachable("an answer of the index server is not whole", found=found, expected=expected)
