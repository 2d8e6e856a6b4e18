"""An etcd whose wall clock a test moves (`tools/build-etcd-clock.sh`): its monotonic clock goes on,
as when a machine's clock is set.

    with start_moved_etcd() as etcd:
        etcd.move(DAY_S)            # returns once its clock shows it
        etcd.member.kill()
        etcd.set_ahead(-DAY_S)      # for its next start
        etcd.member.restart()
"""

from __future__ import annotations

import email.utils
import os
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from cluster_processes import REPOSITORY, EtcdMember
from support.cluster.etcd import start_etcd
from support.waiting import await_that

DAY_S = 24 * 3600
_VARIABLE = "ETCD_WALL_OFFSET_FILE"


@dataclass(frozen=True)
class MovedEtcd:
    """One member."""

    member: EtcdMember
    file: Path

    @property
    def ahead_s(self) -> float:
        """By how many seconds its clock is ahead, to within some seconds: by the header of a
        response."""
        with urllib.request.urlopen(f"http://{self.member.endpoint}/health", timeout=10) as answer:
            shown = email.utils.parsedate_to_datetime(answer.headers["Date"])
        return shown.timestamp() - time.time()

    def set_ahead(self, seconds: int) -> None:
        """Set its clock, or that of its next start."""
        fresh = self.file.with_suffix(".fresh")
        fresh.write_text(str(seconds))
        fresh.rename(self.file)

    def move(self, seconds: int) -> None:
        """Set its clock while it runs; returns once it shows it."""
        self.set_ahead(seconds)
        self.await_ahead(seconds)

    def await_ahead(self, seconds: int) -> None:
        await_that(lambda: abs(self.ahead_s - seconds) < DAY_S / 4, lambda: str(self.ahead_s))


@contextmanager
def start_moved_etcd() -> Iterator[MovedEtcd]:
    """Built first where it is missing."""
    script = REPOSITORY / "tools" / "build-etcd-clock.sh"
    done = subprocess.run([script], stdout=subprocess.PIPE, check=True, text=True)
    program = Path(done.stdout.strip())
    with tempfile.TemporaryDirectory(prefix="tandem-clock-") as folder:
        file = Path(folder) / "ahead"
        with (
            mock.patch.dict(os.environ, {_VARIABLE: str(file)}),
            start_etcd(program=program) as etcd,
        ):
            [member] = etcd.members
            yield MovedEtcd(member, file)
