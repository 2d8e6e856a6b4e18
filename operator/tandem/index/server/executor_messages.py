"""What a coordinator and its executors say to each other: closed JSON, and Arrow tables beside it.
Pure.

A reply names each file that was asked exactly once, by its place in the question, and repeats what
the question was about, so that a coordinator notices one that is of other files or another version.
"""

from __future__ import annotations

from enum import StrEnum
from hashlib import sha256
from typing import Annotated, Final, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from tandem.delta.stats import MOST_ROWS
from tandem.errors import InvalidSpec
from tandem.index import narrowing
from tandem.index.facts.row_groups import UNKNOWN
from tandem.index.narrowing import GroupMatch, GroupMatches
from tandem.index.server.messages import (
    MAX_WHERE,
    HeldShard,
    Message,
    Name,
    Names,
    VersionOf,
)

MAX_FILES: Final = 100_000
"""Files of one question to an executor; what is beyond is left as it is."""

MAX_REPLY_BYTES: Final = 64 << 20
"""Of a reply. One that would have more leaves files as they are."""

MAX_SIZES: Final = 5_000
"""Of shards that an executor tells of at a time."""

FILES: Final = narrowing.FILES.insert(0, pa.field("shard", pa.int32()))
"""Files of a question: the place of their shard in it, and as `narrowing.FILES`."""

MATCHES: Final = pa.schema(
    [("file", pa.int32()), ("rows", pa.list_(pa.int64())), ("matches", pa.list_(pa.int8()))]
)
"""Files of a reply: their place in the question, and as `GroupMatches`."""


class ExecutorCall(StrEnum):
    """What a coordinator asks an executor."""

    NARROW = "Narrow"
    PRIME = "Prime"
    SHOW_CACHE = "ShowCache"
    INVALIDATE_CACHE = "InvalidateCache"


REGISTRY_CALL: Final = "Beat"
"""What an executor tells its coordinator, with `SlotNews`."""


class ShardQuestion(Message):
    """Files of some shards of a table.

    Attributes:
        shards: keys, which the files name by their place.
    """

    api: Literal["v1"] = "v1"
    table: Name
    table_id: Name
    shards: Names


class NarrowQuestion(ShardQuestion):
    """Attributes:
    where: a condition in Tandem's grammar.
    budget_s: seconds after which files are left as they are.
    """

    of: VersionOf
    where: Annotated[str, Field(max_length=MAX_WHERE)]
    budget_s: Annotated[float, Field(gt=0, le=60)]


class NarrowReply(Message):
    """`asked` is the `digest` of the question; the files are the first Arrow table."""

    asked: str


class PrimeReply(Message):
    """So many files were taken on; their facts are read later."""

    files: int


class SlotCache(Message):
    """`evictions` since the start."""

    shards: tuple[HeldShard, ...]
    limit_bytes: int | None
    evictions: int


class InvalidateQuestion(Message):
    """Drop shards of a table; all of them, or all tables, if none are named."""

    api: Literal["v1"] = "v1"
    table_id: Name | None = None
    shards: Names = ()


class ShardSize(Message):
    table_id: Name
    shard: Name
    bytes: Annotated[int, Field(ge=0)]


class SlotNews(Message):
    """A sign of life of an executor, the first of which lets it join.

    Attributes:
        id: opaque; of this process alone.
        endpoint: where it listens, with an address, never a host's name.
        sizes: of shards that it holds.
        leaves: it ends.
    """

    api: Literal["v1"] = "v1"
    slot: Annotated[int, Field(ge=0, le=1_000_000)]
    id: Annotated[str, Field(min_length=1, max_length=200)]
    endpoint: Annotated[str, Field(max_length=500)]
    sizes: Annotated[tuple[ShardSize, ...], Field(max_length=MAX_SIZES)] = ()
    leaves: bool = False


class Welcome(Message):
    """Whether the coordinator knew the executor. To one that was not known, it assigns shards as to
    one that holds nothing."""

    known: bool


def digest(question: NarrowQuestion, files: pa.Table) -> str:
    """Of what is asked: the version, the condition, and each file in its shard."""
    found = sha256(f"{question.table_id}\n{question.of.version}\n{question.where}\n".encode())
    found.update("\n".join(question.shards).encode())
    for name in ("shard", "path", "size"):
        found.update(repr(files[name].to_pylist()).encode())
    return found.hexdigest()


def matches_table(found: GroupMatches) -> pa.Table:
    """The files of a reply."""
    return pa.table([np.arange(len(found), dtype=np.int32), found.rows, found.matches], MATCHES)


def matches_from(table: pa.Table) -> GroupMatches:
    """The reverse of `matches_table`."""
    whole = table.combine_chunks()
    return GroupMatches(*(whole[name].combine_chunks() for name in ("rows", "matches")))


# Whether a reply of an executor can be believed, and what is wrong with it. Pure.
#
# A coordinator has no facts, so it cannot judge them. It can judge what the reply is of, and
# whether its numbers fit together and with the log. What is not believed costs narrowing only: the
# files are left as they are.


def believed(
    asked: NarrowQuestion, files: pa.Table, reply: NarrowReply, table: pa.Table
) -> GroupMatches:
    """What a reply says of the files. Raises: ValueError, which says why it is not believed."""
    if reply.asked != digest(asked, files):
        raise ValueError("of other files, another version or another condition")
    if table.schema != MATCHES:
        raise ValueError(f"columns {table.schema.names}")
    table.validate(full=True)
    places = table["file"].to_numpy()
    if len(places) != files.num_rows or (places != np.arange(len(places))).any():
        raise ValueError(f"{len(table)} files, not each of the {files.num_rows} asked once")
    found = matches_from(table)
    if found.rows.is_valid() != found.matches.is_valid():
        raise ValueError("a file with facts of one kind only")
    lengths = pc.list_value_length(found.matches)
    if pc.list_value_length(found.rows) != lengths:
        raise ValueError("row groups of which something is missing")
    rows, matches = found.rows.flatten(), found.matches.flatten()
    if (
        rows.null_count
        or matches.null_count
        or not set(pc.unique(matches).to_pylist()) <= {*GroupMatch}
    ):
        raise ValueError("a row group of which nothing is said")
    numbers, owner = rows.to_numpy(), np.repeat(np.arange(len(found)), pc.fill_null(lengths, 0))
    # As floats, whose sums do not overflow.
    sums = np.bincount(owner, numbers, len(found))
    if (numbers < 0).any() or (sums > MOST_ROWS).any():
        raise ValueError("a number of rows that is none")
    logged = files["rows"].to_numpy()
    known = np.asarray(found.rows.is_valid()) & (logged != UNKNOWN)
    if (sums[known] != logged[known]).any():
        raise ValueError("a file with other rows than the log says")
    return found


def body(question: Message, files: pa.Table | None = None) -> bytes:
    """A question on the wire: a line of JSON, then the files as a stream of Arrow."""
    text = question.model_dump_json(by_alias=True, exclude_none=True).encode()
    if files is None:
        return text
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, files.schema) as out:
        out.write_table(files)
    return text + b"\n" + bytes(sink.getvalue())


def files_of(data: bytes) -> pa.Table:
    """The files of a question. Raises: InvalidSpec if they are none."""
    _, _, stream = data.partition(b"\n")
    try:
        files = pa.ipc.open_stream(stream).read_all()
        files.validate(full=True)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise _no_files(str(error)) from error
    if files.schema != FILES:
        raise _no_files(str(files.schema))
    if any(files[name].null_count for name in ("shard", "path", "size", "rows", "dead")):
        raise _no_files("nulls")
    if files.num_rows > MAX_FILES:
        raise _no_files(f"{files.num_rows:,} files")
    return files.combine_chunks()


def _no_files(found: str) -> InvalidSpec:
    return InvalidSpec(
        "a question whose files cannot be read",
        found=found[:200],
        expected=f"at most {MAX_FILES:,} files, as Arrow",
    )
