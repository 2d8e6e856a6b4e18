"""What every service of the index server takes and gives: a call's body, and an answer. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
from pydantic import ValidationError

from tandem.errors import InvalidSpec
from tandem.index.server.messages import Message

M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Answer:
    """A message, and the Arrow tables that belong to it."""

    message: Message
    tables: tuple[pa.Table, ...] = ()


def parsed(model: type[M], call: str, body: bytes) -> M:
    """Raises: InvalidSpec, which names the first field that is wrong."""
    try:
        return model.model_validate_json(body or b"{}")
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise InvalidSpec(
            str(first["msg"]),
            resource=call,
            field=".".join(map(str, first["loc"])),
            found=str(first.get("input"))[:100],
            expected="a question of this call",
        ) from error
