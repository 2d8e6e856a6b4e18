"""What a reader's pod asks an index server: a program for the Python of our image, by its standard
input.

Without a fallback, so that a server that fails is seen; or with it, as readers ask. Prints one JSON
object; an error of Tandem is part of it.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from tandem.errors import TandemError
from tandem.index import Query, TableIndex, open_index
from tandem.index.library import IndexReader
from tandem.index.server.client import ACCESS_FOLDER, ChainedIndex, RemoteIndex
from tandem.index.server.messages import CacheAnswer, IndexCall
from tandem.index.server.transport import Connection, Tls
from tandem.storage import open_store

TIMEOUT_S = 30.0
"""Of a call: more than a client's own, for a machine on which much else runs."""
READERS_S = 2.0
"""A client's own."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--table", required=True)
    parser.add_argument("--location", required=True)
    parser.add_argument("--options", type=json.loads, default={})
    parser.add_argument("--token", type=Path, default=Path(ACCESS_FOLDER) / "token")
    parser.add_argument("--held", action="store_true", help="ask what the executors hold, too")
    parser.add_argument("--fallback", action="store_true", help="this process answers if need be")
    parser.add_argument("--brief", action="store_true", help="wait no longer than readers do")
    parser.add_argument("--where", action="append", default=[])
    asked = parser.parse_args(arguments)
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    connection = Connection(
        asked.endpoint,
        token=asked.token.read_text().strip(),
        tls=Tls((Path(ACCESS_FOLDER) / "ca.crt").read_bytes()),
        timeout_s=READERS_S if asked.fallback or asked.brief else TIMEOUT_S,
    )
    opened: list[TableIndex] = []

    def embedded() -> TableIndex:
        opened.append(open_index(asked.location, asked.options))
        return opened[-1]

    remote = RemoteIndex(connection, asked.table, open_store(asked.location, asked.options))
    index: IndexReader = ChainedIndex(remote, embedded) if asked.fallback else remote
    answer: dict[str, Any] = {}
    try:
        answer["of"] = {where: of(index, where) for where in asked.where}
        if asked.held:
            answer["executors"] = held(connection)
    except TandemError as error:
        answer["error"] = {"kind": type(error).__name__, "text": str(error)}
    finally:
        connection.close()
    answer["embedded"] = len(opened)
    sys.stdout.write(json.dumps(answer))
    return 0


def of(index: IndexReader, where: str) -> dict[str, Any]:
    """The number of rows, those that are read and the sum of their keys, the files that a reader
    needs, and how many of these are narrowed to row groups."""
    query = Query(where)
    splits = index.splits(query)
    keys = pa.table(index.reader(query, ["k"]))["k"]
    return {
        "count": index.count(query),
        "rows": len(keys),
        "sum": pc.sum(keys).as_py(),
        "splits": len(splits),
        "narrowed": len(splits) - splits.groups.null_count,
    }


def held(connection: Connection) -> list[dict[str, Any]]:
    """The executors, and how many shards each of them holds."""
    message, _ = connection.ask(IndexCall.SHOW_CACHE, b"{}")
    return [
        {"id": each.id, "shards": len(each.shards)}
        for each in CacheAnswer.model_validate(message).executors
    ]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
