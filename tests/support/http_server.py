"""An HTTP server of a test, in a thread. Does not decide what is answered."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class EveryMethod(BaseHTTPRequestHandler):
    """Answers requests of every method by `answer`."""

    def answer(self) -> None:
        """Subclasses answer; this one refuses."""
        self.send_error(HTTPStatus.NOT_IMPLEMENTED)

    def body(self) -> bytes:
        """That of the request."""
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def __getattr__(self, name: str) -> Callable[[], None]:
        if name.startswith("do_"):
            return self.answer
        raise AttributeError(name)

    def log_message(self, *args: object) -> None:
        """Nothing: the log of a test is not the server's."""


@contextmanager
def serving(
    handler: type[BaseHTTPRequestHandler], tls: ssl.SSLContext | None = None
) -> Iterator[str]:
    """A server for the length of the block; its endpoint."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            scheme = "http" if tls is None else "https"
            yield f"{scheme}://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
