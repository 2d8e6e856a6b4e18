"""The client of a catalog: tries, time limits, and what a foreign answer can do."""

from __future__ import annotations

import contextlib
import pickle
import socket
import ssl
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import pytest
import trustme

from support.hanging_server import hanging_server
from support.http_server import EveryMethod, serving
from tandem.catalogs.rest import MOST_BYTES, Rest
from tandem.errors import InvalidSpec, OutcomeUnknown, StorageError, TandemError

TOKEN = "secret-of-the-catalog"
Reply = tuple[int, dict[str, str], bytes]
OK: Reply = (200, {}, b'{"fine": true}')


class Service:
    """A service that gives the replies of a list, the last one for ever; None closes."""

    def __init__(self) -> None:
        self.replies: list[Reply | None] = [OK]
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.connections: set[object] = set()
        self.url = ""

    def rest(self, ceiling_s: float | None = None) -> Rest:
        return Rest(self.url, lambda: TOKEN, ceiling_s=ceiling_s)


@pytest.fixture
def service() -> Iterator[Service]:
    found = Service()

    class Handler(EveryMethod):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            found.requests.append(
                (self.command, self.path, dict(self.headers.items()), self.body())
            )
            found.connections.add(self.connection.getpeername())
            reply = found.replies.pop(0) if len(found.replies) > 1 else found.replies[0]
            if reply is None:
                self.close_connection = True
                return
            status, headers, content = reply
            self.send_response_only(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

    with serving(Handler) as found.url:
        yield found


def test_a_name_is_one_segment_and_connections_are_kept(service: Service) -> None:
    rest = service.rest()
    assert rest.get(("tables", "a/b c%20é.x?"), {"operation": "READ"}).body == {"fine": True}
    assert rest.post(("tables",), {"a": 1}).ok
    assert [(m, path) for m, path, _, _ in service.requests] == [
        ("GET", "/tables/a%2Fb%20c%2520%C3%A9.x%3F?operation=READ"),
        ("POST", "/tables"),
    ]
    assert service.requests[1][2]["Authorization"] == f"Bearer {TOKEN}"
    assert len(service.connections) == 1


def test_a_connection_that_the_service_closed_is_not_used_again(service: Service) -> None:
    rest = service.rest()
    service.replies = [(200, {"Connection": "close"}, b"{}"), OK]
    assert rest.get(()).ok
    # A post would not be sent again: it must not go into a connection that is closed.
    assert rest.post((), {}).ok
    assert len(service.connections) == 2


@pytest.mark.parametrize("failure", [None, (500, {}, b""), (503, {}, b"<html>"), (502, {}, b"{}")])
def test_a_read_is_tried_again_and_a_commit_is_not(service: Service, failure: Reply | None) -> None:
    service.replies = [failure, failure, OK]
    assert service.rest().get(()).ok
    assert len(service.requests) == 3
    service.replies = [failure, OK]
    with pytest.raises(OutcomeUnknown):
        service.rest().post((), {})
    assert len(service.requests) == 4


def test_too_many_requests_are_sent_again_after_a_while(service: Service) -> None:
    service.replies = [(429, {"Retry-After": "1"}, b""), OK]
    begun = time.monotonic()
    assert service.rest().post((), {}).ok
    assert time.monotonic() - begun >= 1
    named = b'{"error": {"type": "TooManyRequestsException", "message": "slowly", "code": 429}}'
    service.replies = [(429, {}, named), OK]
    assert service.rest().post((), {}).ok


def test_a_full_backlog_is_an_answer(service: Service) -> None:
    named = b'{"error": {"type": "ResourceExhaustedException", "message": "m", "code": 429}}'
    service.replies = [(429, {}, named)]
    answer = service.rest().post((), {})
    assert (answer.status, answer.error, answer.message) == (429, "ResourceExhaustedException", "m")
    assert len(service.requests) == 1


def test_a_pause_that_the_service_asks_for_is_no_longer_than_the_time_that_is_left(
    service: Service,
) -> None:
    service.replies = [(429, {"Retry-After": "3600"}, b"")]
    with pytest.raises(StorageError, match=r"does not serve the request.*HTTP 429"):
        service.rest(ceiling_s=4).get(())
    assert len(service.requests) == 1


def test_a_service_that_never_answers() -> None:
    with hanging_server() as server:
        begun = time.monotonic()
        with pytest.raises(OutcomeUnknown, match="did not answer"):
            Rest(server.endpoint, lambda: "", ceiling_s=2).post((), {})
        with pytest.raises(StorageError, match="did not answer"):
            Rest(server.endpoint, lambda: "", ceiling_s=2).get(())
        assert time.monotonic() - begun < 30


def test_a_service_that_never_ends_its_answer() -> None:
    class Handler(EveryMethod):
        def answer(self) -> None:
            self.body()
            self.send_response_only(200)
            self.send_header("Content-Length", "1000000")
            self.end_headers()
            with contextlib.suppress(OSError):  # until the client has gone
                while not gone.wait(0.05):
                    self.wfile.write(b" ")

        def finish(self) -> None:
            with contextlib.suppress(OSError):
                super().finish()

    gone = threading.Event()
    with serving(Handler) as url:
        begun = time.monotonic()
        with pytest.raises(OutcomeUnknown, match="TimeoutError"):
            Rest(url, lambda: "", ceiling_s=2).post((), {})
        assert time.monotonic() - begun < 30
        gone.set()


def test_an_answer_that_is_cut_off() -> None:
    class Handler(EveryMethod):
        def answer(self) -> None:
            self.send_response_only(200)
            self.send_header("Content-Length", "100")
            self.end_headers()
            self.wfile.write(b"{}")

    with serving(Handler) as url, pytest.raises(OutcomeUnknown, match="98 bytes early"):
        Rest(url, lambda: "").post((), {})


def test_nothing_listens(service: Service) -> None:
    free = "http://127.0.0.1:9"
    with pytest.raises(StorageError, match="did not answer") as found:
        Rest(free, lambda: "", ceiling_s=1).post((), {})
    assert not isinstance(found.value, OutcomeUnknown)  # it was not sent


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ((302, {"Location": "http://elsewhere.example/"}, b""), "redirects are not followed"),
        ((307, {"Location": "/other"}, b""), "redirects are not followed"),
        ((200, {"Content-Type": "text/html"}, b"<html>login</html>"), r"is not JSON.*text/html"),
        ((200, {}, b"[1]"), "is not JSON"),
        ((200, {}, b"\xff{"), "is not JSON"),
        ((200, {}, b" " * (MOST_BYTES + 1)), "too long"),
    ],
)
def test_answers_that_are_none_of_a_catalog(service: Service, reply: Reply, message: str) -> None:
    service.replies = [reply]
    with pytest.raises(StorageError, match=message):
        service.rest().get(())
    assert len(service.requests) == 1


HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


@contextmanager
def sending(*parts: bytes, pause_s: float = 0, family: int = socket.AF_INET) -> Iterator[str]:
    """A server that sends these bytes to each connection, a pause before each part but the first,
    and closes it; its URL."""
    over = threading.Event()
    address = "::1" if family == socket.AF_INET6 else "127.0.0.1"
    with socket.create_server((address, 0), family=family, backlog=64) as listener:

        def serve(connection: socket.socket) -> None:
            with connection, suppress(OSError):  # the client has gone
                connection.recv(1 << 16)
                for number, part in enumerate(parts):
                    if number and over.wait(pause_s):
                        return
                    connection.sendall(part)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(1 << 16):
                    pass

        def accept() -> None:
            with suppress(OSError):  # shut down
                while True:
                    connection = listener.accept()[0]
                    connections.append(connection)
                    threads.append(threading.Thread(target=serve, args=(connection,)))
                    threads[-1].start()

        connections: list[socket.socket] = []
        threads = [threading.Thread(target=accept)]
        threads[0].start()
        try:
            host = f"[{address}]" if ":" in address else address
            yield f"http://{host}:{listener.getsockname()[1]}"
        finally:
            over.set()
            for each in (listener, *connections):
                with suppress(OSError):  # closed
                    each.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()


def whole(body: bytes) -> bytes:
    return HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (CHUNKED + b"-5\r\nabc", "read length"),
        (CHUNKED + b"-1\r\nabc", "IncompleteRead"),
        (CHUNKED + b"zz\r\nabc", "IncompleteRead"),
        # What is there of it is JSON.
        (HEAD + b'Content-Length: 100\r\n\r\n{"a": 1}', "ends 92 bytes early"),
        (HEAD + b"Content-Length: 100\r\n\r\n", "ends 100 bytes early"),
        (HEAD + b"A: b\r\n" * 200 + b"\r\n{}", "more than 100 headers"),
        (whole(b"[" * 100_000), "is not JSON"),
        (whole(b'{"a":' * 100_000), "is not JSON"),
        (whole(b'{"a": %s}' % (b"1" * 5000)), "is not JSON"),
        (whole(b'{"a": NaN}'), "is not JSON"),
        (whole(b'{"a": -Infinity}'), "is not JSON"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "BadStatusLine"),
        (b"\x15\x03\x01\x00\x02\x02\x46", "BadStatusLine"),
        (b"HTTP/1.1 200 \x1b[2J\r\n" + b"x" * 70_000, "LineTooLong"),
    ],
)
def test_bytes_that_are_no_answer(answer: bytes, words: str) -> None:
    """What was sent may have been carried out all the same."""
    with sending(answer) as url:
        with pytest.raises(StorageError, match=words):
            Rest(url, lambda: TOKEN, ceiling_s=0.5).get(())
        # By another connection: the server closes that one, perhaps a moment later.
        with pytest.raises(OutcomeUnknown, match=words) as found:
            Rest(url, lambda: TOKEN, ceiling_s=0.5).post((), {})
    assert "\x1b" not in str(found.value)


def test_a_chunk_without_an_end_is_not_kept_in_memory() -> None:
    """Python's own client reads a chunk of -1 bytes up to the end of the connection."""
    with (
        sending(CHUNKED + b"-1\r\n", *[b" " * (8 << 20)] * 40) as url,
        pytest.raises(OutcomeUnknown, match="too long"),
    ):
        Rest(url, lambda: "").post((), {})


@pytest.mark.parametrize(
    "parts",
    [
        (b"HTTP/1.1 200 OK\r\n", *[b"A: b\r\n"] * 60),
        (HEAD + b"Content-Length: 60\r\n\r\n", *[b" "] * 60),
        (b"", *[b"HTTP/1.1 100 Continue\r\n\r\n"] * 60),
    ],
)
def test_an_answer_that_comes_byte_by_byte(parts: Sequence[bytes]) -> None:
    """A time limit of each byte alone would be none."""
    with sending(*parts, pause_s=0.25) as url:
        begun = time.monotonic()
        with pytest.raises(OutcomeUnknown, match="TimeoutError"):
            Rest(url, lambda: "", ceiling_s=2).post((), {})
        assert time.monotonic() - begun < 8


def test_an_address_of_ipv6() -> None:
    with sending(whole(b"{}"), family=socket.AF_INET6) as url:
        assert Rest(url, lambda: "", ceiling_s=2).get(()).ok
    with pytest.raises(StorageError, match="did not answer"):
        Rest("http://[::1]", lambda: "", ceiling_s=0.5).get(())


@pytest.mark.parametrize("host", ["a..b", "-", ".", f"{'a' * 64}.example"])
def test_hosts_that_are_no_names(host: str) -> None:
    with pytest.raises(StorageError, match="did not answer"):
        Rest(f"http://{host}", lambda: "", ceiling_s=0.5).get(())


def test_a_refusal_without_json_is_described(service: Service) -> None:
    service.replies = [(403, {"Content-Type": "text/html"}, b"<html>no</html>")]
    assert service.rest().get(()).described == "HTTP 403 (answer of type text/html)"


def test_the_token_is_in_no_error(service: Service) -> None:
    rest = service.rest(ceiling_s=1)
    echoed = f'{{"error": {{"type": "X{TOKEN}", "message": "bad token {TOKEN}"}}}}'.encode()
    service.replies = [(401, {}, echoed)]
    shown = [rest.get(()).described, repr(rest), repr(rest.get(()))]
    for reply in (
        None,
        (500, {}, echoed),
        (302, {"Location": f"/{TOKEN}"}, b""),
        (200, {"Content-Type": TOKEN}, b"<html>"),
    ):
        service.replies = [reply]
        with pytest.raises(TandemError) as found:
            rest.post((), {})
        shown += ["".join(traceback.format_exception(found.value)), repr(found.value)]
        assert str(pickle.loads(pickle.dumps(found.value))) == str(found.value)
    assert not [text for text in shown if TOKEN in text]
    with pytest.raises(InvalidSpec) as refused:
        Rest(service.url, lambda: f"{TOKEN}\nX-Other: 1").get(())
    assert TOKEN not in "".join(traceback.format_exception(refused.value))


@pytest.mark.parametrize(
    "url",
    [
        "",
        "uc:8080",
        "ftp://uc/",
        "https://user:password@uc/",
        "https://uc/?token=password",
        "https://[::::]",
        "https://[1.2.3.4]",
        "https://uc:99999",
    ],
)
def test_urls_that_are_refused(url: str) -> None:
    with pytest.raises(InvalidSpec, match="not the URL of a catalog") as found:
        Rest(url, lambda: "")
    assert "password" not in str(found.value)


def test_certificates_are_verified() -> None:
    authority = trustme.CA()

    class Handler(EveryMethod):
        def answer(self) -> None:
            self.send_response_only(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    with serving(Handler, context) as url:
        assert url.startswith("https://")
        assert Rest(url, lambda: "", context=trusting).get(()).ok
        begun = time.monotonic()
        with pytest.raises(StorageError, match="certificate"):
            Rest(url, lambda: "").get(())
        assert time.monotonic() - begun < 20  # that does not pass by itself
        elsewhere = url.replace("127.0.0.1", "localhost")
        with pytest.raises(StorageError, match="certificate"):
            Rest(elsewhere, lambda: "", context=trusting).get(())
    with serving(Handler) as url:
        begun = time.monotonic()
        with pytest.raises(StorageError, match="without TLS"):
            Rest(url.replace("http://", "https://"), lambda: "").get(())
        assert time.monotonic() - begun < 20
