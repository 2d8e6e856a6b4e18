"""The metrics of an operator, over HTTP."""

from __future__ import annotations

import re
import socket
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

from support.waiting import await_that


@dataclass
class Scrape:
    content_type: str
    text: str

    @property
    def types(self) -> dict[str, str]:
        """The type of each family."""
        return dict(re.findall(r"^# TYPE (\S+) (\S+)$", self.text, re.MULTILINE))

    def value(self, name: str, **labels: str) -> float:
        """The sum of all series of this name with these labels."""
        total = 0.0
        for line in self.text.splitlines():
            found = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
            if found is not None and found[1] == name:
                has = dict(re.findall(r'(\w+)="([^"]*)"', found[2] or ""))
                if labels.items() <= has.items():
                    total += float(found[3])
        return total


def scrape(port: int) -> Scrape:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        return Scrape(answer.headers["Content-Type"], answer.read().decode())


def await_scrape(port: int, test: Callable[[Scrape], bool]) -> Scrape:
    """The first scrape for which `test` holds: an operator learns what it wrote to a resource from
    its watch, later than others may read it."""
    seen = [scrape(port)]

    def looks() -> bool:
        seen[0] = scrape(port)
        return test(seen[0])

    if not test(seen[0]):
        await_that(looks, lambda: seen[0].text)
    return seen[0]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
