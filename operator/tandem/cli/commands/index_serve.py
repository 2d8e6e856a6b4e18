"""`tandem index serve`: the index server in this process."""

from __future__ import annotations

import gc
import ipaddress
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tandem.cli.commands.arguments import parsed
from tandem.cli.commands.target import Target, target
from tandem.cli.errors import Exit, say
from tandem.errors import InvalidSpec
from tandem.index import TableIndex
from tandem.index.server.access import MIN_TOKEN
from tandem.index.server.calls import AnswerFiles
from tandem.index.server.coordinator import Coordinator
from tandem.index.server.executor import ExecutorService
from tandem.index.server.service import IndexService
from tandem.index.server.transport import FlightServer, Tls, stop_event
from tandem.spec.fields import parse_quantity
from tandem.storage.store import Store
from tandem.text import counted


@dataclass(frozen=True)
class ServeOptions:
    """The options of the command: `listen` is HOST:PORT, `memory` a quantity, the others are files
    and a folder."""

    listen: str
    token_file: Path | None
    certificate: Path | None
    key: Path | None
    answers: Path | None
    memory: str | None = None


def serve(
    names: Sequence[str], files: Sequence[str], options: Sequence[str], settings: ServeOptions
) -> Exit:
    """Serve until SIGTERM or SIGINT. Raises: InvalidSpec, ReferenceNotFound."""
    host, port = _address(settings.listen)
    token, tls = _token(settings.token_file), _tls(settings)
    if not _is_loopback(host) and (tls is None or not token):
        raise InvalidSpec(
            "statistics are data: beyond loopback, callers are checked and encrypted",
            resource="--listen",
            found=settings.listen,
            expected="--token-file, --tls-cert and --tls-key, or a loopback address",
        )
    openers: dict[str, Callable[[], TableIndex]] = {}
    stores: dict[str, Callable[[], Store]] = {}
    for text in names:
        name, _, location = text.partition("=")
        if "/" in name:  # a location alone, with the sign in it
            name = location = text
        table = target(location or name, files, options)
        # Row groups are the executor's.
        openers[name] = partial(_index, table)
        stores[name] = table.open
    parts = AnswerFiles(settings.answers)
    stop = stop_event()
    limit = None
    if settings.memory is not None:
        expected = "a size, as 512Mi or 4Gi"
        limit = parsed(parse_quantity, settings.memory, "--memory", expected)
    # What the log says and what footers say: half for each.
    half = None if limit is None else limit // 2
    local = ExecutorService(stores, limit_bytes=half)
    with (
        closing(Coordinator(local=local)) as coordinator,
        closing(IndexService(openers, parts, limit_bytes=half, coordinator=coordinator)) as service,
        FlightServer(
            service,
            host,
            port,
            token=token,
            tls=tls,
        ) as server,
    ):
        gc.freeze()  # all callers wait for a collection: it looks at what comes from now on only
        scheme = "grpc" if tls is None else "grpc+tls"
        say(f"Serves {counted(len(openers), 'table')} on {scheme}://{host}:{server.port}")
        stop.wait()
    return Exit.OK


def _index(target: Target) -> TableIndex:
    return TableIndex(target.log(), row_groups=False)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65_535:
        raise InvalidSpec(
            "not an address to listen on",
            resource="--listen",
            found=text,
            expected="HOST:PORT, as 127.0.0.1:8815",
        )
    return host, int(port)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _token(path: Path | None) -> str:
    if path is None:
        return ""
    token = _text(path, "--token-file").decode(errors="replace").strip()
    if len(token) < MIN_TOKEN:
        raise InvalidSpec(
            "the token is too short",
            resource="--token-file",
            found=f"{len(token)} characters",
            expected=f"at least {MIN_TOKEN}",
            remedy="`openssl rand -hex 32` makes one",
        )
    return token


def _tls(settings: ServeOptions) -> Tls | None:
    if settings.certificate is None and settings.key is None:
        return None
    if settings.certificate is None or settings.key is None:
        raise InvalidSpec(
            "a certificate and its key belong together",
            resource="--tls-cert" if settings.certificate is None else "--tls-key",
            expected="both, or neither",
        )
    return Tls(_text(settings.certificate, "--tls-cert"), _text(settings.key, "--tls-key"))


def _text(path: Path, option: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidSpec(
            "the file cannot be read",
            resource=option,
            found=f"{path}: {error.strerror}",
            expected="a file that can be read",
        ) from error
