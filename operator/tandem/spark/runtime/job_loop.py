"""Runs job after job in one process, so that Spark starts once: the other end of
`tandem.spark.launch.job_process`.

A job is a line: the application's file and its arguments. The answer is its exit code. After a job
that failed the process ends: the next job gets a JVM that nothing has happened to.
"""

from __future__ import annotations

import json
import runpy
import socket
import sys

from tandem.spark.runtime import session
from tandem.spark.runtime.parent_watch import watch_parent


def main(address: str) -> int:
    """Serve the socket at a path until the other end closes it or a job fails; returns the exit
    code of the process."""
    watch_parent()
    session.keep()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        with connection.makefile("rw", encoding="utf-8") as lines:
            for line in lines:
                code = _run(json.loads(line))
                lines.write(f"{code}\n")
                lines.flush()
                if code:
                    return code
    return 0


def _run(words: list[str]) -> int:
    """Run an application as Python runs a script; what it raises ends the process."""
    sys.argv = words
    try:
        runpy.run_path(words[0], run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0
