"""`python tools/single_node up [IMAGE.tar...]`: a cluster until Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cluster_processes import PartFailed
from single_node.cluster import single_node
from single_node.needs import NotHere


def main(arguments: list[str]) -> int:
    if arguments[:1] != ["up"]:
        sys.stderr.write(f"{__doc__}\n")
        return 2
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    cache = Path(os.environ.get("TANDEM_CACHE", Path.home() / ".cache" / "tandem"))
    try:
        with single_node(cache / "single-node") as node:
            node.load(*map(Path, arguments[1:]))
            sys.stdout.write(f"export KUBECONFIG={node.kubeconfig}\nCtrl-C ends it.\n")
            sys.stdout.flush()
            threading.Event().wait()
    except (NotHere, PartFailed) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stdout.write("Everything has stopped.\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
