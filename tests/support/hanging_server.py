"""A store that hangs: a socket that accepts every connection and never answers."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class HangingServer:
    """`connections`: those that it has accepted."""

    def __init__(self) -> None:
        self.connections: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._accept, name="hanging server")
        self._thread.start()

    @property
    def options(self) -> dict[str, str]:
        """`spec.storage.options` of a table that lies here. It needs no credentials."""
        return {
            "endpoint": self.endpoint,
            "region": "nowhere",
            "allow_http": "true",
            "skip_signature": "true",
        }

    def _accept(self) -> None:
        with suppress(OSError):  # shut down
            while True:
                self.connections.append(self._listener.accept()[0])

    def close(self) -> None:
        """A client that waits for an answer sees its connection closed."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        for connection in self.connections:
            connection.close()


@contextmanager
def hanging_server() -> Iterator[HangingServer]:
    server = HangingServer()
    try:
        yield server
    finally:
        server.close()
