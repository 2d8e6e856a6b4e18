"""Looks for secrets where none may be: objects of a namespace, logs, command lines, files, etcd."""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from support.cluster.api_server import Cluster

Json = dict[str, Any]


@dataclass
class Canaries:
    """Texts that do not occur by chance. They are found in Base64 and percent-encoded, too."""

    words: Sequence[str]
    looked_at: dict[str, int] = field(default_factory=dict)
    """What was searched, and how many bytes it had: who finds nothing should have looked."""
    found: list[str] = field(default_factory=list)

    def look(self, where: str, data: bytes | str) -> None:
        text = data.encode() if isinstance(data, str) else data
        self.looked_at[where] = self.looked_at.get(where, 0) + len(text)
        for word in self.words:
            for form in _forms(word):
                at = text.find(form)
                if at >= 0:
                    near = text[max(0, at - 80) : at + len(form) + 20]
                    self.found.append(f"{where}: {near!r}")

    def look_below(self, where: str, folder: Path) -> None:
        """All files and their names."""
        for parent, _, names in os.walk(folder):
            for name in names:
                path = Path(parent, name)
                self.look(where, str(path.relative_to(folder)))
                self.look(where, path.read_bytes())


def _forms(word: str) -> Iterator[bytes]:
    raw = word.encode()
    yield raw
    yield quote(word, safe="").encode()
    # Wherever it begins in what was encoded.
    for lead in range(3):
        text = base64.b64encode(b"\0" * lead + raw)
        yield text[4 if lead else 0 : -4]


def objects(cluster: Cluster, namespace: str) -> Iterator[tuple[str, str]]:
    """(kind, JSON) of all kinds that can be listed in a namespace."""
    groups = [("", "/api/v1")]
    for group in cluster.request("GET", "/apis")["groups"]:
        groups.append((group["name"], f"/apis/{group['preferredVersion']['groupVersion']}"))
    for group, base in groups:
        for kind in cluster.request("GET", base)["resources"]:
            if not kind["namespaced"] or "list" not in kind["verbs"] or "/" in kind["name"]:
                continue
            if (group, kind["name"]) == ("", "secrets"):
                continue
            found = cluster.request("GET", f"{base}/namespaces/{namespace}/{kind['name']}")
            for item in found["items"]:
                yield f"{kind['name']}.{group}".rstrip("."), json.dumps(item)


@contextmanager
def command_lines(own: Iterable[int] = ()) -> Iterator[set[bytes]]:
    """All command lines of this machine while the block runs, looked at often; `own` are left
    out. Processes come and go: spark-submit's launcher lives for a moment."""
    seen: set[bytes] = set()
    stop = threading.Event()
    left_out = {os.getpid(), os.getppid(), *own}

    def watch() -> None:
        while not stop.wait(0.1):
            for entry in os.scandir("/proc"):
                if entry.name.isdigit() and int(entry.name) not in left_out:
                    try:
                        seen.add(Path(entry.path, "cmdline").read_bytes())
                    except OSError:
                        continue  # it has ended

    thread = threading.Thread(target=watch, name="command lines", daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()
