"""A real S3 server for tests: versitygw over a temporary folder, on a free loopback port.

`start_server` builds it first where it is missing (`tools/build-versitygw.sh`). It checks
signatures and honours `If-None-Match`, so it stands in for S3 where that matters to us.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import tempfile
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError

from cluster_processes import free_ports
from support.processes import terminate
from tandem.storage import Store, open_store

_REPOSITORY = Path(__file__).resolve().parents[3]
_READY_WITHIN_S = 120.0


@dataclass(frozen=True)
class S3Server:
    """A running server. `folder` holds its buckets as folders, objects as files."""

    endpoint: str
    bucket: str
    access_key: str
    secret_key: str
    folder: Path

    @property
    def environ(self) -> dict[str, str]:
        """What `open_store(environ=…)`, or a process's environment, needs."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
        }

    @property
    def options(self) -> dict[str, str]:
        """`spec.storage.options`."""
        return {"endpoint": self.endpoint, "region": "us-east-1", "allow_http": "true"}

    @property
    def storage_options(self) -> dict[str, str]:
        """The same for `deltalake`."""
        return {
            **self.environ,
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def fresh_location(self) -> str:
        """A place in the bucket that no other test uses."""
        return f"s3://{self.bucket}/{secrets.token_hex(8)}"

    def open(self, location: str | None = None) -> Store:
        return open_store(location or self.fresh_location(), self.options, environ=self.environ)


@contextmanager
def start_server() -> Iterator[S3Server]:
    """Run a server for the length of the block."""
    program = _build()
    with tempfile.TemporaryDirectory(prefix="tandem-s3-") as temporary:
        root = Path(temporary)
        bucket = "lake"
        (root / "data" / bucket).mkdir(parents=True)
        (root / "sidecar").mkdir()
        access_key, secret_key = f"key{secrets.token_hex(8)}", secrets.token_hex(16)
        (port,) = free_ports(1)
        backend = ["posix", str(root / "data")]
        if not _has_attributes(root):
            # Object metadata goes into files where the file system has no attributes.
            backend = ["posix", "--sidecar", str(root / "sidecar"), str(root / "data")]
        log = root / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                [program, "--port", f"127.0.0.1:{port}", "--health", "/health", *backend],
                env={
                    "PATH": os.environ["PATH"],
                    "ROOT_ACCESS_KEY": access_key,
                    "ROOT_SECRET_KEY": secret_key,
                },
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
            )
            try:
                endpoint = f"http://127.0.0.1:{port}"
                _wait_until_ready(process, endpoint, log)
                yield S3Server(endpoint, bucket, access_key, secret_key, root / "data" / bucket)
            finally:
                terminate(process)


def _build() -> str:
    built = subprocess.run(
        [str(_REPOSITORY / "tools" / "build-versitygw.sh")],
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return built.stdout.strip()


def _has_attributes(folder: Path) -> bool:
    try:
        os.setxattr(folder, "user.tandem", b"1")
    except (OSError, AttributeError):
        return False
    return True


def _wait_until_ready(process: subprocess.Popen[bytes], endpoint: str, log: Path) -> None:
    """Polls, since the server offers no other sign; ends at once if it dies."""
    pause = threading.Event()
    for _ in range(int(_READY_WITHIN_S / 0.05)):
        if process.poll() is not None:
            raise RuntimeError(f"the S3 server ended: {log.read_text(errors='replace')[-2000:]}")
        try:
            with urllib.request.urlopen(f"{endpoint}/health", timeout=1) as answer:
                if answer.status == 200:
                    return
        except (URLError, ConnectionError, TimeoutError):
            pause.wait(0.05)
    raise RuntimeError(f"the S3 server is not ready after {_READY_WITHIN_S} s")
