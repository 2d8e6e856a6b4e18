"""A real browser: Chromium without a window, driven by its own protocol over a socket.

`tools/setup-browser.sh` finds or installs it. Every browser has a profile of its own and is
offline: a page that fetches anything is an error.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp

ROOT = Path(__file__).resolve().parents[2]
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-port=0",
)  # fmt: skip
_PATIENCE_S = 60.0


def path() -> str:
    """Where the browser is. Raises: CalledProcessError with what to do, if there is none."""
    found = subprocess.run(
        [ROOT / "tools" / "setup-browser.sh"], stdout=subprocess.PIPE, text=True, check=True
    )
    return found.stdout.strip()


class Page:
    """One tab. `requests` are the URLs that it asked for, `errors` what it logged."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self.requests: list[str] = []
        self.errors: list[str] = []
        self._loaded = False

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the DevTools protocol, and its answer."""
        self._number += 1
        number = self._number
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            message = await self._socket.receive_json(timeout=_PATIENCE_S)
            if message.get("id") == number:
                assert "error" not in message, message
                answer: dict[str, Any] = message["result"]
                return answer
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])
        elif method == "Log.entryAdded":
            self.errors.append(parameters["entry"]["text"])
        elif method == "Runtime.exceptionThrown":
            self.errors.append(str(parameters["exceptionDetails"]))
        elif method == "Page.loadEventFired":
            self._loaded = True

    async def open(self, file: Path, *, dark: bool = False, width: int = 1240) -> None:
        """Load a file, and wait until it is there."""
        for domain in ("Page", "Network", "Log", "Runtime", "Accessibility"):
            await self.call(f"{domain}.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[scheme])
        await self.call("Emulation.setDeviceMetricsOverride", width=width, height=900,
                        deviceScaleFactor=1, mobile=False)  # fmt: skip
        self._loaded = False
        await self.call("Page.navigate", url=file.as_uri())
        while not self._loaded:
            self._note(await self._socket.receive_json(timeout=_PATIENCE_S))

    async def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript: ours, not the page's, which may have none."""
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")


@asynccontextmanager
async def browser() -> AsyncIterator[Page]:
    """A browser with one empty tab, ended afterwards."""
    with _process() as port:
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                tabs = json.loads(await answer.text())
            [tab] = [tab for tab in tabs if tab["type"] == "page"]
            async with session.ws_connect(tab["webSocketDebuggerUrl"], max_msg_size=0) as ws:
                yield Page(ws)


@contextmanager
def _process() -> Iterator[int]:
    """The port of a browser's protocol, which it writes into its profile. It is ended with all
    its processes."""
    with tempfile.TemporaryDirectory(prefix="tandem-browser-", ignore_cleanup_errors=True) as home:
        process = subprocess.Popen(
            [path(), *_FLAGS, f"--user-data-dir={home}", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            file = Path(home) / "DevToolsActivePort"
            deadline = time.monotonic() + _PATIENCE_S
            while not (file.is_file() and "/devtools/" in file.read_text()):
                assert process.poll() is None, "the browser ended"
                assert time.monotonic() < deadline, "the browser does not come up"
                time.sleep(0.02)
            yield int(file.read_text().splitlines()[0])
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
