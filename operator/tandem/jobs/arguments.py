"""A model as arguments of a process, of which each is limited in length: JSON in pieces. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Final, TypeVar

from pydantic import BaseModel, ValidationError

from tandem.errors import InvalidSpec

_M = TypeVar("_M", bound=BaseModel)
_PIECE: Final = 96 * 1024
"""Linux limits one argument to 128 KiB."""


def in_pieces(model: BaseModel) -> tuple[str, ...]:
    """The text, in pieces."""
    text = json.dumps(model.model_dump(mode="json", by_alias=True), separators=(",", ":"))
    # Kubernetes replaces `$(NAME)` in arguments by a variable, which may be a credential.
    text = text.replace("$", "\\u0024")
    return tuple(text[at : at + _PIECE] for at in range(0, len(text), _PIECE))


def from_pieces(type_: type[_M], pieces: Iterable[str]) -> _M:
    """What `in_pieces` wrote. Raises: InvalidSpec."""
    try:
        return type_.model_validate_json("".join(pieces))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise InvalidSpec(
            str(first["msg"]),
            resource="--request",
            field=".".join(map(str, first["loc"])),
            expected="what an operator of this version writes",
            remedy="The image of operator and jobs must be of one version",
        ) from error
