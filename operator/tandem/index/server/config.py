"""What the operator asks an index server's program to serve: one closed JSON text. Pure.

Holds no credential: each Secret is a folder of files, which this names. It travels in arguments of
a process, of which each is limited in length, so it is sent in pieces.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated, Final, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from tandem.errors import InvalidSpec
from tandem.index.server.messages import Message

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


PORT: Final = 8815
"""Where an index server listens in a cluster."""
MAX_TABLES: Final = 1_000
"""Tables of one server."""
SECRETS_VARIABLE: Final = "TANDEM_INDEX_SECRETS"
"""The folder in which each Secret is a folder; `SECRETS_FOLDER` where it is not set."""
SECRETS_FOLDER: Final = "/etc/tandem/secrets"
LISTEN_VARIABLE: Final = "TANDEM_INDEX_LISTEN"
"""`HOST:PORT` to listen on, where that is not the whole pod."""

Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(ge=0)]


class TableConfig(Message):
    """One table. `secret`: the folder with its credentials, None for those of the process."""

    location: str
    options: dict[str, str] = Field(default_factory=dict)
    secret: str | None = None
    allowed: tuple[str, ...] = ()
    """Locations below which its log may name absolute paths."""
    kept_ms: int | None = None
    """How long its LakeTable keeps removed files, in milliseconds; None: as its property says."""


class AccessConfig(Message):
    """Who may ask. `tls`, `token`: folders of Secrets."""

    mode: Literal["ServiceAccount", "SharedToken", "Plaintext"]
    namespace: str
    """That of the tables, in which a caller needs the right."""
    tls: str | None = None
    token: str | None = None


class ServerConfig(Message):
    """Sizes in bytes, times in seconds; see `IndexServerSpec`."""

    api: Literal["v1"] = "v1"
    tables: Annotated[dict[str, TableConfig], Field(max_length=MAX_TABLES)]
    access: AccessConfig
    executors: Annotated[int, Field(ge=0)] = 0
    service: str = ""
    """The name that the certificate is for."""
    memory: Positive
    disk: Positive
    shard_size: Positive
    row_groups: bool = True
    bloom_filters: bool = True
    pre_prime: bool = True
    max_staleness_s: Seconds = 0.0
    poll_s: Annotated[float, Field(gt=0)] = 5.0
    history_s: Seconds = 900.0
    inline_limit: Positive = 300 * 1024
    ttl_s: Seconds = 3 * 3600.0


def written(config: ServerConfig) -> list[str]:
    """The text, in pieces."""
    return [*in_pieces(config)]


def read(pieces: Iterable[str]) -> ServerConfig:
    """The config that was written. Raises: InvalidSpec."""
    return from_pieces(ServerConfig, pieces)
