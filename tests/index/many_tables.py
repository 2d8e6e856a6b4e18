"""`python -m index.many_tables CONFIG`: the program of an index server, with the config of a file.
Prints its endpoint, and ends with its standard input."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from tandem.index.server.messages import LISTEN_VARIABLE, read
from tandem.spark.jobs.index_server import serve


def main(file: str) -> None:
    stop = threading.Event()
    config = read([Path(file).read_text()])

    def ready(endpoint: str) -> None:
        sys.stdout.write(f"{endpoint}\n")
        sys.stdout.flush()

    def wait() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait, daemon=True).start()
    serve(config, stop, {LISTEN_VARIABLE: "127.0.0.1:0"}, ready=ready)


if __name__ == "__main__":
    main(sys.argv[1])
