"""What every service of the index server takes and gives: a call's body, and an answer. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
from pydantic import ValidationError
from pydantic_core import from_json

from tandem.errors import InvalidSpec
from tandem.index.server.messages import MAX_REQUEST_BYTES, Message
from tandem.text import clean

M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Answer:
    """A message, and the Arrow tables that belong to it."""

    message: Message
    tables: tuple[pa.Table, ...] = ()


def table_of(body: bytes) -> str:
    """The table that a call is about; "" for all, or if it is no question at all."""
    if len(body) > MAX_REQUEST_BYTES:
        return ""
    try:
        # The parser of `parsed`: of a name that is there twice, both take the same one.
        message = from_json(body or b"{}")
    except ValueError:
        return ""
    found = message.get("table") if isinstance(message, dict) else None
    return found if isinstance(found, str) else ""


def parsed(model: type[M], call: str, body: bytes) -> M:
    """Raises: InvalidSpec, which names the first field that is wrong."""
    try:
        return model.model_validate_json(body or b"{}")
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InvalidSpec(
            "the server does not take this question",
            resource=call,
            field=".".join(map(str, first["loc"])),
            found=clean(str(first["input"])),
            expected=str(first["msg"]),
            remedy="Correct it, or use the client of the server's version",
        ) from error
