"""A foreign engine in a process of its own, controlled by lines of JSON.

    with started("deltalake") as engine:                # or "spark": one JVM, for a whole run
        engine.call("open", table="a", location=...)
        engine.call("act", table="a", what="delete", arguments={"where": "id < 15"})

`python -m support.foreign.process ENGINE` is the other side.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

from support.foreign.calls import DeltalakeCalls, DuckdbCalls, Json, Refused, SparkCalls

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TREE = Path(__file__).resolve().parents[3]


class Engine(Protocol):
    def call(self, name: str, **arguments: Json) -> Json:
        """A method of `DeltalakeCalls` or `SparkCalls`. Raises: Refused."""


class Here:
    """In this process: for readers, and where a second JVM would be too dear."""

    def __init__(self, calls: DeltalakeCalls | SparkCalls) -> None:
        self._calls = calls

    def call(self, name: str, **arguments: Json) -> Json:
        return getattr(self._calls, name)(**arguments)


class Process:
    """In a process of its own."""

    def __init__(self, child: subprocess.Popen[str]) -> None:
        self._child = child
        assert child.stdin is not None
        assert child.stdout is not None
        self._to: IO[str] = child.stdin
        self._from: IO[str] = child.stdout

    def call(self, name: str, **arguments: Json) -> Json:
        self._to.write(_line({"call": name, "arguments": arguments}))
        self._to.flush()
        line = self._from.readline()
        assert line, f"the foreign process ended: {self._child.poll()}"
        answer = _parsed(line)
        if "refused" in answer:
            raise Refused(answer["refused"], answer["message"])
        return answer["value"]


_MOMENT = "a moment"


def _line(message: Json) -> str:
    return json.dumps(message, default=lambda moment: {_MOMENT: moment.isoformat()}) + "\n"


def _parsed(line: str) -> Json:
    def decoded(found: dict[str, Json]) -> Json:
        return dt.datetime.fromisoformat(found[_MOMENT]) if _MOMENT in found else found

    return json.loads(line, object_hook=decoded)


@contextmanager
def started(engine: str, *arguments: str) -> Iterator[Process]:
    """`deltalake`, `spark`, or `duckdb`; with the address of a Unity Catalog, `spark` and `duckdb`
    are its clients. What it says besides goes to our standard error."""
    paths = [
        *(str(_TREE / part) for part in ("tests", "operator", "tools")),
        os.environ.get("PYTHONPATH", ""),
    ]
    python = duckdb_python() if engine == "duckdb" else sys.executable
    command = [python, "-m", "support.foreign.process", engine, *arguments]
    with controlled(command, {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}) as process:
        yield process


@contextmanager
def controlled(command: Sequence[str], environ: Mapping[str, str]) -> Iterator[Process]:
    """A program that answers line by line, as `serve`."""
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=dict(environ),
    )
    with child:
        yield Process(child)
        assert child.stdin is not None
        child.stdin.close()
        child.wait(60)


def spark_here(session: SparkSession) -> Here:
    return Here(SparkCalls(session))


def deltalake_here() -> Here:
    return Here(DeltalakeCalls())


def duckdb_python() -> str:
    """That of the environment with DuckDB's extensions, which `tools/build-unity.sh` makes."""
    cache = os.environ.get("TANDEM_CACHE") or os.path.expanduser("~/.cache/tandem")
    return f"{cache}/duckdb-unity/bin/python"


def _calls(engine: str, *arguments: str) -> DeltalakeCalls | SparkCalls | DuckdbCalls:
    if engine == "deltalake":
        return DeltalakeCalls()
    if engine == "duckdb":
        return DuckdbCalls(*arguments)
    from delta_session import interpreting, start_session, unity_conf

    if not arguments:
        return SparkCalls(start_session())
    return SparkCalls(interpreting(start_session(conf=unity_conf(*arguments))))


def serve(engine: str, *arguments: str) -> None:
    """Answer line by line until standard input ends."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever engines print is no answer
    calls = _calls(engine, *arguments)
    for line in sys.stdin:
        request = _parsed(line)
        try:
            value = getattr(calls, request["call"])(**request["arguments"])
            answer = {"value": value}
        except Refused as error:
            answer = {"refused": error.name, "message": error.message}
        answers.write(_line(answer))
        answers.flush()


if __name__ == "__main__":
    serve(*sys.argv[1:])
