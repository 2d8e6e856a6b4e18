"""The options of `format("tandem")`. One that is not known is refused: a `versoin` that is ignored
would read other rows than those that were meant."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from tandem.errors import InvalidSpec, closest_name
from tandem.mergelog.by_key import MEMORY
from tandem.storage.paths import without_userinfo

T = TypeVar("T")

_BOTH: Final = ("path", "storageOptions")
_OF_READS: Final = (*_BOTH, "version", "versionAsOf", "columns", "base", "memory")
_OF_WRITES: Final = (*_BOTH, "writer", "deletes")
_OF_STREAMS: Final = (*_OF_WRITES, "checkpointLocation", "queryName")
_OF_BATCHES: Final = (*_OF_WRITES, "batch")


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """How a table is read.

    Attributes:
        storage: settings of the store that are not secret.
        version: of the base table; None for the newest.
        columns: names; None for all.
        base: whether the log is left out.
        memory: bytes that the index of the log may take in a task.
    """

    location: str
    storage: tuple[tuple[str, str], ...]
    version: int | None
    columns: tuple[str, ...] | None
    base: bool
    memory: int


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """How rows are appended.

    Attributes:
        storage: settings of the store that are not secret.
        writer: the name of the log writer; "" if none is given.
        batch: the number of the batch of a write that is no stream; None if none is given.
        deletes: the column that says which rows are deletes; "" without one.
    """

    location: str
    storage: tuple[tuple[str, str], ...]
    writer: str
    batch: int | None
    deletes: str


def read_options(options: Mapping[str, str]) -> ReadOptions:
    """Raises: InvalidSpec."""
    found = _Options(options, _OF_READS)
    version = found.parsed("version", _number)
    as_of = found.parsed("versionAsOf", _number)
    if version is not None and as_of is not None:
        raise found.wrong("versionAsOf", str(as_of), "either `version` or `versionAsOf`")
    columns = found.parsed("columns", names_in)
    memory = found.parsed("memory", _size)
    return ReadOptions(
        found.location,
        found.storage,
        as_of if version is None else version,
        columns,
        found.parsed("base", _flag) or False,
        MEMORY if memory is None else memory,
    )


def write_options(options: Mapping[str, str], *, stream: bool) -> WriteOptions:
    """Raises: InvalidSpec."""
    found = _Options(options, _OF_STREAMS if stream else _OF_BATCHES)
    batch = found.parsed("batch", _number)
    writer = options.get("writer", "")
    if not stream:
        for name, value in (("writer", writer or None), ("batch", batch)):
            if value is None:
                raise found.wrong(name, "none", "a value: a batch that comes twice counts once")
    return WriteOptions(found.location, found.storage, writer, batch, options.get("deletes", ""))


class _Options:
    def __init__(self, options: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._options = options
        self._spellings = {name.lower(): name for name in known}
        self.location = options.get("path", "")
        for name in options:
            # Without its value: it may be a secret, which belongs into the environment.
            if name.lower() not in self._spellings:
                meant = closest_name(name, known)
                raise self.wrong(
                    name, "no such option", f"perhaps {meant}" if meant else ", ".join(known)
                )
        if not self.location:
            raise self.wrong("path", "none", "the location of a table, as in load(location)")
        self.storage = tuple(sorted((self.parsed("storageOptions", _texts) or {}).items()))

    def parsed(self, name: str, parse: Callable[[str], T]) -> T | None:
        text = self._options.get(name)
        if text is None:
            return None
        try:
            return parse(text)
        except ValueError as error:
            # It may have secrets: the value is not shown, nor the error, which quotes it.
            if name == "storageOptions":
                raise self.wrong(name, "not shown", "a JSON object of strings") from None
            raise self.wrong(name, text, str(error)) from error

    def wrong(self, name: str, found: str, expected: str) -> InvalidSpec:
        return InvalidSpec(
            'an option of format("tandem") is invalid',
            resource=without_userinfo(self.location),
            field=self._spellings.get(name.lower(), name),
            found=found[:200],
            expected=expected,
            remedy="docs/merge-on-read.md lists the options",
        )


def names_in(text: str) -> tuple[str, ...]:
    """Names separated by commas, or a JSON list of names. Raises: ValueError."""
    if text.lstrip().startswith("["):
        names = _json(text)
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ValueError("a JSON list of names")
    else:
        names = [name.strip() for name in text.split(",")]
    if not names or "" in names or len(set(names)) < len(names):
        raise ValueError("one name or more, each once, separated by commas or as a JSON list")
    return tuple(names)


def _texts(text: str) -> dict[str, str]:
    found = _json(text)
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ValueError("a JSON object of strings")
    return found


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"JSON: {error}") from error


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 19):
        raise ValueError("a number from 0")
    return int(text)


def _size(text: str) -> int:
    # Here, since each Python worker imports this module, and the resources take a second.
    from tandem.spec.fields import parse_quantity

    return parse_quantity(text)


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"
