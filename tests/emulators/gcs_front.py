"""Google's XML API in front of fake-gcs-server, which lacks its way to write an object.

A put becomes an upload of the JSON API, its header `x-goog-if-generation-match` the parameter of
that name: fake-gcs-server itself decides whether the object is absent. All else passes unchanged.
"""

from __future__ import annotations

import http.client
from contextlib import AbstractContextManager
from urllib.parse import quote, unquote

from support.http_server import EveryMethod, serving

_HOP = ("host", "connection", "transfer-encoding", "content-length", "x-goog-if-generation-match")


class _Front(EveryMethod):
    protocol_version = "HTTP/1.1"
    upstream: tuple[str, int]

    def answer(self) -> None:
        body = self.body()
        method, path = self.command, self.path
        if method == "PUT" and "?" not in path:
            bucket, _, key = path.removeprefix("/").partition("/")
            method = "POST"
            path = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name="
            path += quote(unquote(key), safe="")
            if wanted := self.headers.get("x-goog-if-generation-match"):
                path += f"&ifGenerationMatch={wanted}"
        headers = {name: of for name, of in self.headers.items() if name.lower() not in _HOP}
        line = http.client.HTTPConnection(*self.upstream, timeout=120)
        try:
            line.request(method, path, body, headers)
            answer = line.getresponse()
            content = answer.read()
        finally:
            line.close()
        self.send_response(answer.status)
        for name, of in answer.getheaders():
            if name.lower() not in _HOP:
                self.send_header(name, of)
        if method == "HEAD":
            content = b""
            self.send_header("Content-Length", answer.getheader("Content-Length") or "0")
        else:
            self.send_header("Content-Length", str(len(content)))
        if self.command == "PUT":
            # The JSON API answers by a document, the XML API by headers.
            self.send_header("x-goog-generation", "1")
            self.send_header("ETag", '"put"')
        self.end_headers()
        self.wfile.write(content)


def front(host: str, port: int) -> AbstractContextManager[str]:
    """A front of the server at `host` and `port`; its endpoint."""
    return serving(type("Front", (_Front,), {"upstream": (host, port)}))
