"""S3 when answers get lost, credentials are wrong, or the bucket is not there."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest

from support.lake.s3 import S3Server
from tandem.errors import (
    AccessDenied,
    AlreadyExists,
    ObjectNotFound,
    OutcomeUnknown,
    StorageError,
    StorageFull,
    StoreUnsuitable,
)
from tandem.storage import Store, open_store, probe_put_if_absent, remote


class Mischief(Enum):
    NONE = "pass everything on"
    LOSE_ANSWER = "pass the request on, then cut the line"
    ERROR_AFTER = "pass the request on, then answer 500 in the server's place"
    ERROR_BEFORE = "answer 503 without passing it on"
    UNDECIDED = "answer 409, as S3 does while another put of that name is under way"
    FULL = "answer 507, as servers with a full disk do"
    CUT = "cut the line before anything is passed on"
    HANG = "pass the request on and never answer"


@dataclass
class Proxy:
    """A line to the server that misbehaves with requests of one method."""

    endpoint: str
    mischief: Mischief = Mischief.NONE
    method: bytes = b"PUT"
    times: int = 1_000
    seen: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def serve(self, listener: socket.socket, upstream: tuple[str, int]) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=self._line, args=(client, upstream), daemon=True).start()

    def _line(self, client: socket.socket, upstream: tuple[str, int]) -> None:
        with client, suppress(OSError), socket.create_connection(upstream) as server:
            while request := _message(client):
                mischief = Mischief.NONE
                if request.startswith(self.method):
                    self.seen += 1
                    mischief = self.mischief if self.seen <= self.times else Mischief.NONE
                if mischief is Mischief.CUT:
                    return
                if mischief is Mischief.ERROR_BEFORE:
                    client.sendall(_answer(503, "Service Unavailable"))
                    return
                if mischief is Mischief.FULL:
                    client.sendall(_answer(507, "Insufficient Storage"))
                    return
                if mischief is Mischief.UNDECIDED:
                    body = "<Error><Code>ConditionalRequestConflict</Code></Error>"
                    client.sendall(_answer(409, "Conflict", body))
                    return
                server.sendall(request)
                answer = _message(server, head=request.startswith(b"HEAD"))
                if mischief is Mischief.LOSE_ANSWER:
                    return
                if mischief is Mischief.HANG:
                    self.over.wait(60)
                    return
                if mischief is Mischief.ERROR_AFTER:
                    client.sendall(_answer(500, "Internal Server Error"))
                    return
                client.sendall(answer)


def _answer(status: int, text: str, body: str = "") -> bytes:
    header = f"HTTP/1.1 {status} {text}\r\nContent-Length: {len(body)}\r\nConnection: close"
    return f"{header}\r\n\r\n{body}".encode()


def _message(connection: socket.socket, *, head: bool = False) -> bytes:
    """One request or answer: up to the blank line, and as much as Content-Length says."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65536)
        if not more:
            return b""
        data += more
    header, _, body = data.partition(b"\r\n\r\n")
    length = 0
    for line in header.lower().split(b"\r\n"):
        if line.startswith(b"content-length:") and not head:
            length = int(line.split(b":")[1])
    while len(body) < length:
        more = connection.recv(65536)
        if not more:
            return b""
        body += more
    return header + b"\r\n\r\n" + body


@pytest.fixture
def proxy(s3_server: S3Server) -> Iterator[Proxy]:
    with _proxy(s3_server) as found:
        yield found


@contextmanager
def _proxy(server: S3Server) -> Iterator[Proxy]:
    host, port = server.endpoint.removeprefix("http://").split(":")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        found = Proxy(f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread = threading.Thread(target=found.serve, args=(listener, (host, int(port))))
        thread.start()
        try:
            yield found
        finally:
            found.over.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def through(proxy: Proxy, server: S3Server, location: str, **more: str) -> Store:
    options = {**server.options, "endpoint": proxy.endpoint, **more}
    return open_store(location, options, environ=server.environ)


@pytest.mark.parametrize("mischief", [Mischief.LOSE_ANSWER, Mischief.ERROR_AFTER, Mischief.HANG])
def test_Z20_a_put_whose_answer_is_lost_is_unknown_and_never_a_conflict(
    s3_server: S3Server, proxy: Proxy, mischief: Mischief
) -> None:
    direct = s3_server.open()
    store = through(proxy, s3_server, direct.location, timeout="2s")
    proxy.mischief = mischief
    with pytest.raises(OutcomeUnknown) as caught:
        store.put_if_absent("_delta_log/1.json", b"token-a")
    assert caught.value.remedy
    assert proxy.seen == 1, "a second put would have found the first one's object"
    assert direct.get("_delta_log/1.json") == b"token-a"


@pytest.mark.parametrize("mischief", [Mischief.CUT, Mischief.ERROR_BEFORE, Mischief.UNDECIDED])
def test_Z20_a_put_that_never_arrived_is_unknown_too(
    s3_server: S3Server, proxy: Proxy, mischief: Mischief
) -> None:
    direct = s3_server.open()
    store = through(proxy, s3_server, direct.location)
    proxy.mischief = mischief
    with pytest.raises(OutcomeUnknown):
        store.put_if_absent("_delta_log/1.json", b"token-a")
    assert proxy.seen == 1
    with pytest.raises(ObjectNotFound):
        direct.get("_delta_log/1.json")


def test_a_full_server_is_reported(s3_server: S3Server, proxy: Proxy) -> None:
    store = through(proxy, s3_server, s3_server.fresh_location())
    proxy.mischief = Mischief.FULL
    with pytest.raises(StorageFull) as caught:
        store.put_if_absent("a", b"1")
    assert caught.value.remedy
    assert proxy.seen == 1


def test_digits_in_a_message_are_not_taken_for_a_status(s3_server: S3Server, proxy: Proxy) -> None:
    """The texts of errors hold durations and paths: "in 1.507ms" is no full disk."""
    store = through(proxy, s3_server, s3_server.fresh_location())
    proxy.mischief = Mischief.CUT
    with pytest.raises(OutcomeUnknown):
        store.put_if_absent("507/416/403/401", b"1")


def test_a_definite_refusal_is_reported_as_such(s3_server: S3Server, proxy: Proxy) -> None:
    store = through(proxy, s3_server, s3_server.fresh_location())
    store.put_if_absent("a", b"1")
    with pytest.raises(AlreadyExists):
        store.put_if_absent("a", b"2")


def test_reads_and_replacing_puts_are_tried_again(s3_server: S3Server, proxy: Proxy) -> None:
    store = through(proxy, s3_server, s3_server.fresh_location())
    proxy.mischief, proxy.times = Mischief.ERROR_BEFORE, 2
    store.put("a", b"1")
    proxy.method, proxy.seen = b"GET", 0
    assert store.get("a") == b"1"
    assert proxy.seen == 3


def test_a_server_that_ignores_the_condition_is_unsuitable(s3_server: S3Server) -> None:
    class Forgetful:
        """Drops the condition, as a store without it would."""

        def __init__(self, store: Store) -> None:
            self.store = store

        def __getattr__(self, name: str) -> object:
            return getattr(self.store, "put" if name == "put_if_absent" else name)

    store = s3_server.open()
    with pytest.raises(StoreUnsuitable) as caught:
        probe_put_if_absent(Forgetful(store))  # type: ignore[arg-type]
    assert store.location in str(caught.value)
    assert caught.value.remedy
    assert list(store.list()) == []


def test_wrong_keys_are_access_denied(s3_server: S3Server) -> None:
    environ = {**s3_server.environ, "AWS_SECRET_ACCESS_KEY": "wrong"}
    store = open_store(s3_server.fresh_location(), s3_server.options, environ=environ)
    for call in (
        lambda: store.get("a"),
        lambda: store.put_if_absent("a", b""),
        lambda: list(store.list()),
        lambda: probe_put_if_absent(store),
    ):
        with pytest.raises(AccessDenied) as caught:
            call()
        assert "credentials" in str(caught.value)


def test_an_absent_bucket_is_reported(s3_server: S3Server) -> None:
    store = open_store("s3://no-such-bucket/t", s3_server.options, environ=s3_server.environ)
    for call in (lambda: store.put("a", b""), lambda: list(store.list())):
        with pytest.raises(StorageError, match=r"[Bb]ucket") as caught:
            call()
        assert not isinstance(caught.value, ObjectNotFound)


def test_messages_are_short_and_free_of_secrets(s3_server: S3Server) -> None:
    store = s3_server.open()
    with pytest.raises(ObjectNotFound) as caught:
        store.get("nothing")
    assert "\n" not in str(caught.value)
    assert s3_server.secret_key not in str(caught.value)
    assert s3_server.secret_key not in repr(store)


def test_parts_of_an_abandoned_upload_are_not_listed(s3_server: S3Server) -> None:
    store = s3_server.open()
    output = store.open_output("large")
    for _ in range(12):
        output.write(b"x" * (1 << 20))
    del output
    assert list(store.list()) == []
    with pytest.raises(ObjectNotFound):
        store.head("large")


OPTIONS = {"region": "nowhere", "endpoint": "http://127.0.0.1:9", "allow_http": "true"}


def clients_of(bucket: str) -> int:
    return sum(isinstance(key, tuple) and bucket in key for key in remote._opened)


def test_tables_of_a_bucket_share_a_client_and_nothing_else_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened = list[tuple[str, object]]()
    new_client = remote._new_client

    def counted(scheme: str, authority: str, config: Mapping[str, str], *more: Any) -> Any:
        opened.append((authority, config.get("secret_access_key")))
        return new_client(scheme, authority, config, *more)

    monkeypatch.setattr(remote, "_new_client", counted)
    monkeypatch.setattr(remote, "time", SimpleNamespace(monotonic=lambda: 0.0))
    one, other = ({"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": s} for s in ("one", "other"))

    def opens(
        location: str, environ: Mapping[str, str], *, ceiling_s: float = 60.0, **options: str
    ) -> Store:
        return open_store(location, {**OPTIONS, **options}, environ=environ, ceiling_s=ceiling_s)

    stores = [opens(f"s3://shared/t{number}", one) for number in range(20)]
    assert opened == [("shared", "one")]
    stores += [opens("s3://shared/t0", other), opens("s3://elsewhere/t0", one)]
    assert opened[1:] == [("shared", "other"), ("elsewhere", "one")]
    stores += [
        opens("s3://shared/t0", one, ceiling_s=50.0),
        opens("s3://shared/t0", one, region="somewhere"),
    ]
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    stores.append(opens("s3://shared/t0", one))
    assert opened[3:] == [("shared", "one")] * 3
    stores.clear()
    assert clients_of("shared") == 0


def test_a_client_is_not_shared_with_a_store_that_is_opened_much_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Files of credentials may have changed meanwhile."""
    now_s = 1_000.0
    monkeypatch.setattr(remote, "time", SimpleNamespace(monotonic=lambda: now_s))
    first = open_store("s3://late/t0", OPTIONS)
    again = open_store("s3://late/t1", OPTIONS)
    assert clients_of("late") == 1
    now_s += remote._SHARED_S
    late = open_store("s3://late/t2", OPTIONS)
    assert clients_of("late") == 2
    del first, again, late
