"""Where a Hive Metastore says that a table is: one call of Thrift's binary protocol, and no more.

The call is `get_table_req`, which metastores from 2.3 on have. Sources: "Thrift binary protocol
encoding" of apache/thrift, and `hive_metastore.thrift` of apache/hive. Answers may be hostile:
reading ends after as many bytes and as much time as is set here, with a table or an error.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from tandem.catalogs.registered import RegisteredTable
from tandem.errors import StorageError, TableNotFound
from tandem.spec.catalog import HiveName, parts_of

CONNECT_S: Final = 5.0
ANSWER_S: Final = 30.0
"""For the whole call."""
MOST_BYTES: Final = 32 << 20
"""Of an answer. A table of 10,000 columns takes about 1 MB."""
_DEEPEST: Final = 32
_VERSION: Final = 0x80010000
_CALL, _REPLY, _EXCEPTION = 1, 2, 3
_STOP, _STRING, _STRUCT, _MAP = 0, 11, 12, 13
_SIZES: Final = {2: 1, 3: 1, 4: 8, 6: 2, 8: 4, 10: 8}
"""Bytes of a value by its type: bool, byte, double, i16, i32, i64."""
_SET, _LIST = 14, 15
_METHOD: Final = "get_table_req"

TEXT: Final = "text"
TEXTS: Final = "texts"
Wanted = Mapping[int, Any]
"""The fields to read of a struct, by number: TEXT, TEXTS for a map of strings, or the fields of a
struct."""
# As hive_metastore.thrift numbers them.
_SERDE: Final[Wanted] = {3: TEXTS}
_STORAGE: Final[Wanted] = {2: TEXT, 3: TEXT, 7: _SERDE}
_TABLE: Final[Wanted] = {7: _STORAGE, 9: TEXTS, 12: TEXT}
_ERROR: Final[Wanted] = {1: TEXT}
_META_ERROR, _NO_SUCH_OBJECT = 1, 2
_RESULT: Final[Wanted] = {0: {1: _TABLE}, _META_ERROR: _ERROR, _NO_SUCH_OBJECT: _ERROR}


def look_up(named: HiveName, *, resource: str, ceiling_s: float | None = None) -> RegisteredTable:
    """The table as the metastore describes it.

    Args:
        ceiling_s: how long the call may take, in seconds; None for `ANSWER_S`.
        resource: the table as the command line spells it, for messages.
    Raises: TableNotFound; StorageError if the metastore does not answer, or not in this protocol.
    """
    database, table = parts_of(named.name)
    within_s = min(ANSWER_S, ceiling_s or ANSWER_S)
    until_s = time.monotonic() + within_s
    try:
        parts = urlsplit(named.address)
        address = (parts.hostname or "", parts.port or 0)
        with socket.create_connection(address, min(CONNECT_S, within_s)) as connection:
            connection.sendall(_request(database, table))
            answer = ThriftAnswer(connection, until_s).result()
    # ValueError: a host that is no name, or no address between the brackets.
    except (OSError, NotThrift, ValueError) as error:
        raise StorageError(
            "the Hive Metastore did not answer as expected",
            resource=resource,
            found=str(error) or type(error).__name__,
            expected=f"an answer of a metastore at {named.address}, without SASL and TLS",
            remedy="Check the address and the network",
        ) from None
    if missing := answer.get(_NO_SUCH_OBJECT):
        raise TableNotFound(
            "the Hive Metastore has no such table",
            resource=resource,
            found=_line(missing),
            expected=f"a table {table} in the database {database}",
            remedy="Correct the name",
        )
    if failure := answer.get(_META_ERROR):
        raise StorageError(
            "the Hive Metastore cannot describe this table", resource=resource, found=_line(failure)
        )
    found = answer.get(0, {}).get(1, {})
    storage = found.get(7, {})
    return RegisteredTable(
        table_type=found.get(12, ""),
        parameters=found.get(9, {}),
        location=storage.get(2, ""),
        serde_parameters=storage.get(7, {}).get(3, {}),
        input_format=storage.get(3, ""),
    )


def _line(error: Mapping[int, str]) -> str:
    return " ".join(error.get(1, "").split())[:200]


def _request(database: str, table: str) -> bytes:
    name = _METHOD.encode()
    head = struct.pack(">Ii", _VERSION | _CALL, len(name)) + name + struct.pack(">i", 0)
    fields = b"".join(
        struct.pack(">bhi", _STRING, number, len(text)) + text
        for number, text in ((1, database.encode()), (2, table.encode()))
    )
    # The one argument is a struct: `GetTableRequest`.
    return head + struct.pack(">bh", _STRUCT, 1) + fields + bytes([_STOP, _STOP])


class NotThrift(Exception):
    """What was read is no answer of a metastore."""


class ThriftAnswer:
    """Reads from a connection, until a time of the monotonic clock."""

    def __init__(self, connection: socket.socket, until_s: float) -> None:
        self._connection = connection
        self._until_s = until_s
        self._buffer = bytearray()
        self._read = 0

    def result(self) -> dict[int, Any]:
        """The result of the call. Raises: NotThrift, OSError."""
        head = self._number(">I", 4)
        if head & 0xFFFF0000 != _VERSION:
            raise NotThrift(f"bytes {head.to_bytes(4, 'big')!r} instead of Thrift's")
        self._text()
        self._take(4)
        kind = head & 0xFF
        if kind == _EXCEPTION:
            said = self._struct({1: TEXT}).get(1, "")
            raise NotThrift(f"an exception: {' '.join(said.split())[:200]}")
        if kind != _REPLY:
            raise NotThrift(f"a message of type {kind}")
        return self._struct(_RESULT)

    def _take(self, count: int) -> bytes:
        if not 0 <= count <= MOST_BYTES - self._read:
            raise NotThrift(f"a value of {count} bytes")
        self._read += count
        while len(self._buffer) < count:
            left_s = self._until_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("no whole answer in time")
            self._connection.settimeout(left_s)
            part = self._connection.recv(1 << 16)
            if not part:
                raise NotThrift("the end of the connection")
            self._buffer += part
        found = bytes(self._buffer[:count])
        del self._buffer[:count]
        return found

    def _number(self, form: str, size: int) -> int:
        found: int = struct.unpack(form, self._take(size))[0]
        return found

    def _text(self) -> str:
        return self._take(self._number(">i", 4)).decode("utf-8", "replace")

    def _struct(self, wanted: Wanted, depth: int = 0) -> dict[int, Any]:
        found: dict[int, Any] = {}
        while (type_ := self._number(">b", 1)) != _STOP:
            number = self._number(">h", 2)
            shape = wanted.get(number)
            if shape is TEXT and type_ == _STRING:
                found[number] = self._text()
            elif shape is TEXTS and type_ == _MAP:
                found[number] = self._texts()
            elif isinstance(shape, dict) and type_ == _STRUCT:
                found[number] = self._struct(shape, depth + 1)
            elif shape is not None:
                raise NotThrift(f"a field {number} of type {type_}")
            else:
                self._skip(type_, depth + 1)
        return found

    def _texts(self) -> dict[str, str]:
        keys, values, count = (self._number(f, s) for f, s in ((">b", 1), (">b", 1), (">i", 4)))
        if count and (keys, values) != (_STRING, _STRING):
            raise NotThrift(f"a map of types {keys} and {values}")
        return {self._text(): self._text() for _ in range(self._entries(count))}

    def _entries(self, count: int) -> int:
        # An entry has a byte at least, and a struct that is empty has its end.
        if not 0 <= count <= MOST_BYTES - self._read:
            raise NotThrift(f"{count} entries")
        return count

    def _skip(self, type_: int, depth: int) -> None:
        if depth > _DEEPEST:
            raise NotThrift("structs too deep in each other")
        if type_ in _SIZES:
            self._take(_SIZES[type_])
        elif type_ == _STRING:
            self._take(self._number(">i", 4))
        elif type_ == _STRUCT:
            while (inner := self._number(">b", 1)) != _STOP:
                self._take(2)
                self._skip(inner, depth + 1)
        elif type_ in (_SET, _LIST):
            of = self._number(">b", 1)
            for _ in range(self._entries(self._number(">i", 4))):
                self._skip(of, depth + 1)
        elif type_ == _MAP:
            keys, values = self._number(">b", 1), self._number(">b", 1)
            for _ in range(self._entries(self._number(">i", 4))):
                self._skip(keys, depth + 1)
                self._skip(values, depth + 1)
        else:
            raise NotThrift(f"a value of type {type_}")
