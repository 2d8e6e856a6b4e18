"""Questions and answers on the wire: closed JSON, and Arrow tables beside it. Pure.

A field that is not known is refused: it might restrict the question. Every answer names its table's
id and the one version that it is of.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from itertools import pairwise
from typing import Annotated, Any, Final, Literal, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from tandem.delta.actions import Metadata, Protocol
from tandem.delta.log import files as files_
from tandem.errors import InvalidSpec, Unreachable
from tandem.index.answers import Cut, PathRange, Portions, Splits
from tandem.index.library import LONGEST_STALE_S, Query
from tandem.index.window import Head
from tandem.text import clean
from tandem.timeline.names import LONGEST_S

MAX_REQUEST_BYTES = 1 << 20
MAX_WHERE = 64 * 1024
MAX_ITEMS = 10_000
MAX_VERSION = 2**63 - 1
MAX_PATH = 8_192
"""Characters: keys of object stores have 1,024 bytes, logged in up to three for each."""
MAX_TASKS = 1_000_000

CERTAIN, ROWS, NEEDED = "certain", "rows", "row_groups"
"""Columns of splits beside those of `Snapshot.files`."""
FIRST, PARTS = "first", "parts"
"""Columns of portions."""
_PORTIONS = pa.schema([(FIRST, pa.string()), (PARTS, pa.int64())])


class IndexCall(StrEnum):
    """What can be asked."""

    GET_COUNT = "GetCount"
    GET_BOUNDS = "GetBounds"
    GET_SPLITS = "GetSplits"
    GET_PORTIONS = "GetPortions"
    SHOW_CACHE = "ShowCache"
    INVALIDATE_CACHE = "InvalidateCache"
    LOAD = "Load"


class Message(BaseModel):
    """Base of all of them."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True
    )


Name = Annotated[str, Field(max_length=1_000)]
Names = Annotated[tuple[Name, ...], Field(max_length=MAX_ITEMS)]
Version = Annotated[int, Field(ge=0, le=MAX_VERSION)]
LoggedPath = Annotated[str, Field(max_length=MAX_PATH)]
_OF_QUERY = (
    *("where", "segments", "version", "timestamp_ms"),
    *("at_least", "max_staleness_s", "hold_s"),
)
"""What a question has as `Query` has it."""


class Question(Message):
    """What every question about rows says.

    Attributes:
        where: a condition in Tandem's grammar; empty for all rows.
        at_least, max_staleness_s, hold_s: as of `Query`; only splits are held.
        first_path, end_path: only files between these; as of `PathRange`.
    """

    api: Literal["v1"] = "v1"
    table: Name
    where: Annotated[str, Field(max_length=MAX_WHERE)] = ""
    segments: Names = ()
    version: Version | None = None
    timestamp_ms: Annotated[int, Field(ge=0, le=MAX_VERSION)] | None = None
    at_least: Version | None = None
    max_staleness_s: Annotated[float, Field(ge=0, le=LONGEST_STALE_S)] | None = None
    hold_s: Annotated[int, Field(ge=0, le=LONGEST_S)] = 0
    first_path: LoggedPath | None = None
    end_path: LoggedPath | None = None

    @classmethod
    def of(cls, table: str, query: Query, **more: Any) -> Self:
        return cls(
            table=table,
            **{name: getattr(query, name) for name in _OF_QUERY},
            first_path=None if query.paths is None else query.paths.first,
            end_path=None if query.paths is None else query.paths.end,
            **more,
        )

    @property
    def query(self) -> Query:
        """Raises: InvalidSpec if it contradicts itself."""
        every = self.first_path is None and self.end_path is None
        paths = None if every else PathRange(self.first_path or "", self.end_path)
        return Query(**{name: getattr(self, name) for name in _OF_QUERY}, paths=paths)


class PortionsQuestion(Question):
    """How splits are to be cut: as of `Cut`."""

    tasks: Annotated[int, Field(ge=1, le=MAX_TASKS)]
    most_bytes: Annotated[int, Field(ge=1, le=MAX_VERSION)]

    @property
    def cut(self) -> Cut:
        return Cut(self.tasks, self.most_bytes)


class BoundsQuestion(Question):
    columns: Annotated[tuple[Name, ...], Field(min_length=1, max_length=MAX_ITEMS)]


class TableQuestion(Message):
    """A question about what is held; of all tables without a name."""

    api: Literal["v1"] = "v1"
    table: Name | None = None


class VersionOf(Message):
    """The version that an answer is of, and what reading its files needs to know."""

    location: str
    version: Version
    timestamp_ms: int
    table_id: str
    schema_string: str
    partition_columns: tuple[str, ...]
    configuration: dict[str, str]
    min_reader: int
    min_writer: int
    reader_features: tuple[str, ...]
    writer_features: tuple[str, ...]

    @classmethod
    def of(cls, head: Head) -> Self:
        metadata, protocol = head.metadata, head.protocol
        return cls(
            location=head.location,
            version=head.version,
            timestamp_ms=head.timestamp_ms,
            table_id=metadata.id,
            schema_string=metadata.schema_string,
            partition_columns=metadata.partition_columns,
            configuration=dict(metadata.configuration),
            min_reader=protocol.min_reader,
            min_writer=protocol.min_writer,
            reader_features=tuple(sorted(protocol.reader_features)),
            writer_features=tuple(sorted(protocol.writer_features)),
        )

    @property
    def head(self) -> Head:
        metadata = Metadata(
            self.table_id, self.schema_string, self.partition_columns, self.configuration
        )
        protocol = Protocol(
            self.min_reader,
            self.min_writer,
            frozenset(self.reader_features),
            frozenset(self.writer_features),
        )
        return Head(self.location, self.version, self.timestamp_ms, metadata, protocol)


class CountAnswer(Message):
    """`rows` are certain; the rest is the first Arrow table, if there is a rest."""

    of: VersionOf
    rows: int
    rest: int


class SplitsAnswer(Message):
    """The splits are the first Arrow table, or wait under the ticket. `readable_until_ms`: as of
    `Splits`."""

    of: VersionOf
    splits: int
    readable_until_ms: int = 0
    ticket: str | None = None


class PortionsAnswer(Message):
    """The first Arrow table has `first` and `parts` of each range of paths, as of `Portions`; so
    many splits are left to be asked for."""

    of: VersionOf
    splits: int


class BoundsAnswer(Message):
    """Of each column three Arrow tables: `low` and `high` in one row, and the splits that could
    have a lesser and a greater value, with a column `limit`."""

    of: VersionOf
    columns: tuple[str, ...]


class HeldTable(Message):
    """What is held of a table; `version` None for nothing."""

    table: str
    version: int | None
    bytes: int
    questions: int


class HeldShard(Message):
    """What an executor holds of a shard.

    Attributes:
        filter_bytes: bytes of these that are bloom filters.
        loads: how often it was loaded: once more after each time it was evicted.
        hits: questions that found it held.
    """

    table: str
    table_id: str
    shard: str
    bytes: Annotated[int, Field(ge=0)]
    filter_bytes: Annotated[int, Field(ge=0)] = 0
    loads: int
    hits: int


class ExecutorCache(Message):
    """What an executor holds. `limit_bytes` None for no limit; `evictions` since the start; so many
    of its replies were `refused`."""

    slot: int
    id: str
    shards: tuple[HeldShard, ...]
    limit_bytes: int | None
    evictions: int
    refused: int


class CacheAnswer(Message):
    """`limit_bytes` None for no limit; `evictions` since the start. An executor that does not
    answer is left out."""

    tables: tuple[HeldTable, ...]
    limit_bytes: int | None
    evictions: int
    executors: tuple[ExecutorCache, ...] = ()


def splits_table(found: Splits) -> pa.Table:
    """Splits as one Arrow table."""
    table = found.files.append_column(CERTAIN, pa.array(found.certain))
    table = table.append_column(ROWS, pa.array(found.rows, pa.int64()))
    return table.append_column(NEEDED, found.groups)


def splits_from(head: Head, table: pa.Table, paths: PathRange | None = None) -> Splits:
    """The splits of `splits_table`, all of them in a range of paths. Raises: Unreachable."""
    with reading():
        found = Splits(
            head,
            table.select(files_.SCHEMA.names),
            table[CERTAIN].to_numpy().astype(bool),
            table[ROWS].to_numpy().astype(np.int64),
            table[NEEDED].combine_chunks(),
        )
        if paths is not None:
            _require_within(found.files["path"], paths)
    return found


def _require_within(found: pa.ChunkedArray, paths: PathRange) -> None:
    """Other portions have what lies beyond. Raises: ValueError."""
    if not paths.mask(found).all():
        raise ValueError("there are files of other portions")
    if pc.count_distinct(found).as_py() != len(found):
        raise ValueError("a file is there twice")


def portions_table(found: Portions) -> pa.Table:
    """Portions as one Arrow table."""
    return pa.table({FIRST: list(found.firsts), PARTS: list(found.parts)}, schema=_PORTIONS)


def portions_from(head: Head, splits: int, table: pa.Table) -> Portions:
    """The portions of `portions_table`. Raises: Unreachable if they overlap, or are too many."""
    with reading():
        table = table.select(_PORTIONS.names)
        if table.schema.types != _PORTIONS.types or any(each.null_count for each in table.columns):
            raise ValueError(f"the columns of portions are {table.schema.types}")
        firsts, parts = table[FIRST].to_pylist(), table[PARTS].to_pylist()
        if any(after <= before for before, after in pairwise(firsts)):
            raise ValueError("the ranges of paths are not in order")
        if any(each < 1 for each in parts) or sum(parts) > MAX_TASKS:
            raise ValueError(f"the ranges of paths have {sum(parts)} parts")
        if bool(splits) != bool(firsts):
            raise ValueError(f"{splits} splits are in {len(firsts)} ranges of paths")
        return Portions(head, splits, tuple(firsts), tuple(parts))


# Checks what a client sends to an index server, and what it receives. Pure.
#
# Versions of the two may differ: an answer that is not as this version expects it is none.


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


# What the operator asks an index server's program to serve: one closed JSON text. Pure.
#
# Holds no credential: each Secret is a folder of files, which this names. It travels in arguments
# of a process, of which each is limited in length, so it is sent in pieces.


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
