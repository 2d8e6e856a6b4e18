"""The service over Arrow Flight: its server, and one call of a client. The only module that knows
Flight.

An action is a call; its body is the question. The answer is a message as JSON, then the Arrow
tables that belong to it, each as one IPC stream. An error comes back as JSON, too, in a result of
its own, so that the client raises what a call in its own process would have raised.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.flight as flight
import structlog

from tandem.errors import AccessDenied, InvalidSpec, TandemError, Unreachable
from tandem.index.server.access import CallerCheck, SharedToken, Unchecked
from tandem.index.server.calls import (
    MAX_CALLS,
    MAX_STREAMS,
    Answer,
    AnswerFiles,
    CallerTurns,
    described,
    raised,
    table_of,
)

_log = structlog.get_logger("tandem.index.server")
_AUTHORIZATION = "authorization"
_ACCESS = "access"
_MESSAGE, _TABLE, _ERROR = b"m", b"t", b"e"
"""The first byte of a result."""
_HANDSHAKE = re.compile(r"certificate|[Hh]andshake")
"""In what gRPC says where TLS itself failed."""
_UNREAD = 32 << 10
"""Bytes that a connection takes though its client does not read."""


@dataclass(frozen=True)
class Tls:
    """PEM texts: of a server its certificate and key, of a client the certificates it trusts."""

    certificate: bytes
    key: bytes = b""


class Service(Protocol):
    """What can be served: the index, an executor, or the registry of executors."""

    @property
    def parts(self) -> AnswerFiles: ...

    def ask(self, call: str, body: bytes, caller: str) -> Answer: ...


class FlightServer(flight.FlightServerBase):  # type: ignore[misc]
    """Serves a service until `shutdown`.

    Args:
        host, port: to listen on; port 0 for any free one.
        token: what callers must present; "" for no check, which is for loopback only.
        tls: None for plain text.
        access: who may ask, in place of a token.
    """

    def __init__(
        self, service: Service, host: str, port: int, *, token: str = "",
        tls: Tls | None = None, access: CallerCheck | None = None,
    ) -> None:  # fmt: skip
        access = access or (SharedToken(token) if token else Unchecked())
        scheme = "grpc" if tls is None else "grpc+tls"
        super().__init__(
            f"{scheme}://{host}:{port}",
            middleware={_ACCESS: _AccessFactory(access)},
            tls_certificates=None if tls is None else [(tls.certificate, tls.key)],
        )
        self._service = service
        self._calls, self._streams = CallerTurns(MAX_CALLS), CallerTurns(MAX_STREAMS)

    def do_action(self, context: Any, action: flight.Action) -> Iterator[bytes]:
        access = context.get_middleware(_ACCESS)
        caller = access.caller
        body = b"" if action.body is None else action.body.to_pybytes()
        access.require(table_of(body))
        try:
            with self._calls.turn(place_of(context)):
                answer = self._service.ask(action.type, body, caller)
        except TandemError as error:
            yield _ERROR + json.dumps(described(error)).encode()
            return
        except Exception:  # noqa: BLE001 - a process boundary: logged here, described there
            # Neither a traceback nor a path of this machine reaches a caller.
            _log.exception("a question failed", call=action.type[:40])
            failed = Unreachable("the index server failed", resource=action.type[:40])
            yield _ERROR + json.dumps(described(failed)).encode()
            return
        yield _MESSAGE + answer.message.model_dump_json(by_alias=True).encode()
        if sum(table.nbytes for table in answer.tables) <= _UNREAD:
            for table in answer.tables:
                yield _TABLE + _stream(table)
            return
        with self._sending(context):
            for table in answer.tables:
                yield _TABLE + _stream(table)

    def do_get(self, context: Any, ticket: flight.Ticket) -> flight.FlightDataStream:
        caller = context.get_middleware(_ACCESS).caller
        try:
            name = ticket.ticket.decode("ascii")
            schema, batches = self._service.parts.fetch(name, caller)
        except (KeyError, UnicodeDecodeError):
            raise flight.FlightUnauthorizedError("no answer waits under this ticket") from None

        def sent() -> Iterator[pa.RecordBatch]:
            with self._sending(context):
                yield from batches

        return flight.GeneratorStream(schema, sent())

    @contextmanager
    def _sending(self, context: Any) -> Iterator[None]:
        """Raises: FlightUnavailableError if the caller does not read what it asks for."""
        try:
            with self._streams.turn(place_of(context)):
                yield
        except Unreachable as error:
            raise flight.FlightUnavailableError(str(error)) from None


def stop_event() -> threading.Event:
    """An event that SIGTERM or SIGINT sets, whichever thread receives it. In the main thread only.

    A handler in Python would run when the main thread next runs Python: one that waits for the
    event is not woken where another thread receives the signal, or where it comes just before the
    wait. So the event is set by a thread, which reads what the interpreter writes on a signal.
    """
    stop = threading.Event()
    read, written = socket.socketpair()
    written.setblocking(False)
    signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)

    def wait(_written: socket.socket) -> None:  # held, or it would be closed
        while read.recv(1):
            stop.set()

    threading.Thread(target=wait, args=[written], name="signals", daemon=True).start()
    return stop


class Connection:
    """A client's connection to an index server. Thread-safe.

    Args:
        endpoint: `grpc://HOST:PORT` or `grpc+tls://HOST:PORT`.
        token: presented with each call.
        timeout_s: of a call.
        most_bytes: of a message of the server; -1 for no limit.
        server_name: that the certificate is for, if it is not the endpoint's.
    Raises: InvalidSpec if the token cannot be sent.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        token: str = "",
        tls: Tls | None = None,
        timeout_s: float = 2.0,
        most_bytes: int = -1,
        server_name: str = "",
    ) -> None:
        if token and not (token.isascii() and token.isprintable() and token == token.strip()):
            raise InvalidSpec(
                "the token cannot be sent",
                resource=endpoint,
                field="token",
                expected="printable ASCII without blanks at its ends",
            )
        named: dict[str, Any] = {} if tls is None else {"tls_root_certs": tls.certificate}
        if server_name:
            named["override_hostname"] = server_name
        self.endpoint = endpoint
        # Without the option, a message has at most 4 MiB.
        options = [("grpc.max_receive_message_length", most_bytes)]
        self._client = flight.FlightClient(endpoint, generic_options=options, **named)
        header = (_AUTHORIZATION.encode(), f"Bearer {token}".encode())
        self._headers = [header] if token else []
        self._timeout_s = timeout_s

    def ask(
        self, call: str, body: bytes, *, timeout_s: float | None = None
    ) -> tuple[dict[str, Any], list[pa.Table]]:
        """The message and the tables of an answer.

        Args:
            timeout_s: of this call, if it is not that of the connection.
        Raises: Unreachable if there is none in time; AccessDenied; what the server raised.
        """
        options = self._options(timeout_s)
        message: dict[str, Any] | None = None
        tables: list[pa.Table] = []
        try:
            for result in self._client.do_action(flight.Action(call, body), options):
                data = result.body.to_pybytes()
                kind, rest = data[:1], data[1:]
                if kind == _ERROR:
                    raise raised(json.loads(rest))
                if kind == _MESSAGE:
                    message = json.loads(rest)
                else:
                    tables.append(pa.ipc.open_stream(rest).read_all())
        except (flight.FlightError, pa.ArrowException, ValueError, OSError) as error:
            raise self._translated(error) from error
        if message is None:
            raise self._translated(ValueError("the answer is empty"))
        return message, tables

    def fetch(self, ticket: str, *, more_s: float = 0.0) -> pa.Table:
        """The answer that waits under a ticket.

        Args:
            more_s: beyond the time of a call.
        Raises: as `ask`.
        """
        options = self._options(self._timeout_s + more_s)
        try:
            return self._client.do_get(flight.Ticket(ticket), options).read_all()
        except (flight.FlightError, pa.ArrowException) as error:
            raise self._translated(error) from error

    def close(self) -> None:
        self._client.close()

    def _options(self, timeout_s: float | None = None) -> flight.FlightCallOptions:
        timeout = self._timeout_s if timeout_s is None else timeout_s
        return flight.FlightCallOptions(timeout=timeout, headers=self._headers)

    def _translated(self, error: Exception) -> TandemError:
        denied = flight.FlightUnauthenticatedError, flight.FlightUnauthorizedError
        if isinstance(error, denied):
            return AccessDenied(
                "the index server refuses the caller",
                resource=self.endpoint,
                found=str(error).splitlines()[0][:200],
                expected="a valid token, and a ticket that was given to this caller",
                remedy="Present a token for index servers, of an account with the right",
            )
        found = _cause(error)
        if _HANDSHAKE.search(found):
            return Unreachable(
                "the index server is not trusted",
                resource=self.endpoint,
                field="certificate",
                found=found,
                expected="a certificate for the name in the address, within its time, of an "
                "authority that the caller trusts",
                remedy="Renew the server's certificate, or correct the address or ca.crt",
            )
        return Unreachable(
            "the index server does not answer",
            resource=self.endpoint,
            found=found,
            expected="an answer in time",
        )


def _cause(error: Exception) -> str:
    """What a client knows of a failure: gRPC repeats itself before it says why."""
    text = str(error).splitlines()[0]
    _, _, cause = text.rpartition("last error: UNKNOWN: ")
    return cause[:300]


class _Access(flight.ServerMiddleware):  # type: ignore[misc]
    """Who asks in a call."""

    def __init__(self, access: CallerCheck, authorization: str) -> None:
        self._access, self._authorization = access, authorization
        with _as_flight():
            self.caller = access.caller(authorization)

    def require(self, table: str) -> None:
        """That the caller may ask about a table. Raises: FlightError."""
        with _as_flight():
            self._access.require(self._authorization, table)


class _AccessFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Checks every call before its question is read."""

    def __init__(self, access: CallerCheck) -> None:
        self._access = access

    def start_call(self, _info: Any, headers: Mapping[str, list[str]]) -> _Access:
        return _Access(self._access, next(iter(headers.get(_AUTHORIZATION, [])), ""))


@contextmanager
def _as_flight() -> Iterator[None]:
    try:
        yield
    except AccessDenied as error:
        raise flight.FlightUnauthenticatedError(error.message) from None
    except Unreachable as error:
        _log.warning("a caller cannot be checked", problem=str(error))
        raise flight.FlightUnavailableError(error.message) from None


def place_of(context: Any) -> str:
    """A caller on one host: where all present the same token, or none, one of them does not take
    the turns of all."""
    host, _, _ = context.peer().rpartition(":")
    return f"{context.get_middleware(_ACCESS).caller} {host}"


def _stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as out:
        out.write_table(table)
    return bytes(sink.getvalue())
