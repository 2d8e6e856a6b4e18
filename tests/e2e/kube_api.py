"""A cluster as `make e2e` sees it: by kubectl alone, its own or a foreign one.

What is asked often goes through `kubectl proxy`, so that whatever the kubeconfig says about who
we are holds for it, too.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError
from urllib.parse import quote

from cluster_processes import Part

Json = dict[str, Any]
T = TypeVar("T")
POLL_S = 0.15
LIMIT_S = 300.0
_TRIES = 60


class CommandFailed(AssertionError):
    """A program that a person would type ended with an error."""


@dataclass
class Kube:
    """`program` and `options` are kubectl and how it finds the cluster."""

    program: Path
    options: Sequence[str]
    folder: Path
    _proxy: Part | None = field(default=None, repr=False)
    _base: str = ""

    @contextmanager
    def served(self) -> Iterator[Kube]:
        """With `kubectl proxy` for the length of the block."""
        log = self.folder / "kubectl-proxy.log"
        log.unlink(missing_ok=True)
        command = [str(self.program), *self.options, "proxy", "--port=0"]
        proxy = Part("kubectl-proxy", command, self.folder, lambda: " on " in log.read_text())
        proxy.start()
        try:
            [address] = re.findall(r"Starting to serve on (\S+)", log.read_text())[-1:]
            self._base = f"http://{address}"
            yield self
        finally:
            proxy.kill()

    def __call__(self, *arguments: str, text: str | None = None) -> str:
        """Run kubectl; what it prints."""
        return command([str(self.program), *self.options, *arguments], text=text)

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """`kubectl apply` of these."""
        listed = {"apiVersion": "v1", "kind": "List", "items": list(objects)}
        self("apply", "-f", "-", text=json.dumps(listed))

    def get(self, path: str) -> Json | None:
        """An object, or a list of them; None if there is none."""
        pause = threading.Event()
        for left in reversed(range(_TRIES)):
            try:
                with urllib.request.urlopen(f"{self._base}{path}", timeout=30) as answer:
                    found: Json = json.load(answer)
                    return found
            except HTTPError as error:
                with error:
                    if error.code == 404:
                        return None
                    # As long as a definition is new, for one.
                    if error.code not in {429, 503} or not left:
                        raise
            pause.wait(POLL_S)
        raise AssertionError("unreachable")

    def items(self, path: str) -> list[Json]:
        """What is in a list; nothing where there is no such list."""
        return list((self.get(path) or {}).get("items", ()))

    def pods(self, namespace: str, selector: str = "") -> list[Json]:
        query = f"?labelSelector={quote(selector)}" if selector else ""
        return self.items(f"/api/v1/namespaces/{namespace}/pods{query}")

    def logs(self, namespace: str, selector: str) -> str:
        """Of all pods so labelled, those before a restart not included."""
        return self("logs", "-n", namespace, "-l", selector, "--tail=-1", "--all-containers")

    def rolled_out(self, namespace: str, deployment: str, *, within_s: int = 300) -> None:
        self("rollout", "status", "-n", namespace, deployment, f"--timeout={within_s}s")

    @contextmanager
    def forwarded(self, namespace: str, target: str, port: int) -> Iterator[str]:
        """host:port of this machine that leads to that port of a pod or a service."""
        name = f"forward-{target.replace('/', '-')}"
        log = self.folder / f"{name}.log"
        log.unlink(missing_ok=True)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            here = int(probe.getsockname()[1])
        command = [str(self.program), *self.options, "port-forward", "-n", namespace, target,
                   f"{here}:{port}", "--address=127.0.0.1"]  # fmt: skip
        part = Part(name, command, self.folder, lambda: "Forwarding from" in log.read_text())
        part.start()
        try:
            yield f"127.0.0.1:{here}"
        finally:
            part.kill()


def command(words: Sequence[str], *, text: str | None = None) -> str:
    """Run a program; what it prints.

    Raises: CommandFailed with its output.
    """
    done = subprocess.run(words, input=text, capture_output=True, check=False, text=True)
    if done.returncode != 0:
        output = (done.stderr.strip() or done.stdout.strip())[-4000:]
        raise CommandFailed(f"{' '.join(words)[:300]}: {output}")
    return done.stdout


def until(
    look: Callable[[], T | None], what: Callable[[], object] | str, *, within_s: float = LIMIT_S
) -> T:
    """What `look` gives once that is something; fails after the time with `what` it sees."""
    pause = threading.Event()
    end = time.monotonic() + within_s
    while True:
        found = look()
        if found:
            return found
        if time.monotonic() > end:
            seen = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {within_s:.0f} s: {seen}")
        pause.wait(POLL_S)


def condition(found: Mapping[str, Any], kind: str) -> Json:
    """A condition of an object; empty where it has none of that type."""
    for each in found.get("status", {}).get("conditions") or ():
        if each["type"] == kind:
            return dict(each)
    return {}
