"""A process that holds a lock: `python lock_holder.py ENDPOINT PREFIX TTL_S`.

It takes a lock on segment 0, says `held`, and at each line that it reads says whether it may
commit. Tests stop and kill it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

OPERATION = "of another process"
OWNER = "another process"

_TREE = Path(__file__).resolve().parents[2]


@contextmanager
def holder(endpoint: str, prefix: str, ttl_s: int) -> Iterator[subprocess.Popen[str]]:
    """It holds the lock when this returns."""
    process = subprocess.Popen(
        [sys.executable, __file__, endpoint, prefix, str(ttl_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": f"{_TREE / 'operator'}:{_TREE / 'tests'}"},
    )
    try:
        assert first_line(process) == "held"
        yield process
    finally:
        process.kill()
        process.communicate()


def ask_to_commit(process: subprocess.Popen[str]) -> str:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return first_line(process)


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def main() -> None:
    from support.lock_requests import TABLE, request
    from tandem.locks.etcd.store import EtcdLocks, EtcdSettings
    from tandem.locks.rules import Granted, Mode

    endpoint, prefix, ttl_s = sys.argv[1:]
    locks = EtcdLocks(EtcdSettings((endpoint,), prefix, int(ttl_s)))
    asked = request(OPERATION, Mode.REWRITE, "0", owner=OWNER)
    assert isinstance(locks.acquire(asked), Granted)
    sys.stdout.write("held\n")
    sys.stdout.flush()
    for _ in sys.stdin:
        sys.stdout.write(f"{locks.enter_commit(TABLE, OPERATION, OWNER)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
