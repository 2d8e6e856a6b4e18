"""Azurite and fake-gcs-server as processes, each with an empty bucket `lake`."""

from __future__ import annotations

import base64
import hashlib
import hmac
import socket
import subprocess
import threading
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cluster_processes import free_ports
from emulators.gcs_front import front
from support.processes import terminate
from tandem.storage import Store, open_store

_ROOT = Path(__file__).resolve().parents[2]
_READY_WITHIN_S = 120
_ACCOUNT = "devstoreaccount1"
# Not a secret: the account of every Azurite, named in its documentation.
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_VERSION = "2021-12-02"


@dataclass(frozen=True)
class Cloud:
    """A running emulator: where a bucket is, and how it is reached."""

    root: str
    options: Mapping[str, str]
    environ: Mapping[str, str]

    def open(self, location: str) -> Store:
        return open_store(location, self.options, environ=self.environ)


def programs() -> tuple[str, str]:
    """The programs of fake-gcs-server and Azurite."""
    built = subprocess.run(
        [str(_ROOT / "tools" / "build-emulators.sh")],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    gcs, azurite = built.stdout.split()
    return gcs, azurite


@contextmanager
def azure(program: str, folder: Path) -> Iterator[Cloud]:
    """Azurite, with a container."""
    (port,) = free_ports(1)
    words = [program, "--location", str(folder), "--blobPort", str(port), "--silent"]
    # The client may be newer than the emulator.
    with _running([*words, "--skipApiVersionCheck"], port, folder / "log"):
        endpoint = f"http://127.0.0.1:{port}/{_ACCOUNT}"
        _create_container(endpoint, "lake")
        yield Cloud(
            f"abfss://lake@{_ACCOUNT}",
            {"endpoint": endpoint, "allow_http": "true"},
            {"AZURE_STORAGE_ACCOUNT_KEY": _KEY},
        )


@contextmanager
def google(program: str, folder: Path) -> Iterator[Cloud]:
    """fake-gcs-server, with a bucket."""
    (folder / "data" / "lake").mkdir(parents=True)
    (port,) = free_ports(1)
    here = ["-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
    words = [*here, "-public-host", "127.0.0.1", "-backend", "memory"]
    with (
        _running([program, *words, "-data", str(folder / "data")], port, folder / "log"),
        front("127.0.0.1", port) as endpoint,
    ):
        yield Cloud(
            "gs://lake",
            {"endpoint": endpoint, "allow_http": "true"},
            {"GOOGLE_BEARER_TOKEN": "any"},
        )


def _create_container(endpoint: str, name: str) -> None:
    now = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    signed = (
        "PUT" + "\n" * 12 + f"x-ms-date:{now}\nx-ms-version:{_VERSION}\n"
        f"/{_ACCOUNT}/{_ACCOUNT}/{name}\nrestype:container"
    )
    digest = hmac.new(base64.b64decode(_KEY), signed.encode(), hashlib.sha256).digest()
    request = urllib.request.Request(
        f"{endpoint}/{name}?restype=container",
        method="PUT",
        headers={
            "x-ms-date": now,
            "x-ms-version": _VERSION,
            "Authorization": f"SharedKey {_ACCOUNT}:{base64.b64encode(digest).decode()}",
            "Content-Length": "0",
        },
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.status == 201


@contextmanager
def _running(words: Sequence[str], port: int, log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            words, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )
        try:
            _wait_until_ready(process, port, log)
            yield
        finally:
            terminate(process)


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Polls, since the servers offer no other sign; ends at once if one dies."""
    pause = threading.Event()
    for _ in range(_READY_WITHIN_S * 10):
        if process.poll() is not None:
            raise RuntimeError(f"the server ended: {log.read_text(errors='replace')[-2000:]}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            pause.wait(0.1)
        else:
            return
    raise RuntimeError(f"the server is not ready after {_READY_WITHIN_S} s")
