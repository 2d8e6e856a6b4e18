"""`python -m index.index_driver LOCATION COUNT`: the smallest driver of an index server with
executors on Spark. Prints its port, and ends with its standard input."""

from __future__ import annotations

import os
import sys
from functools import partial

from index.spread_index import eager
from tandem.index import open_index
from tandem.index.server.calls import AnswerFiles
from tandem.index.server.service import IndexService
from tandem.index.server.transport import FlightServer
from tandem.spark.jobs import index_server as index_executors
from tandem.spark.runtime import session
from tandem.storage import open_store


def main(location: str, count: int) -> None:
    from pyspark import SparkConf, SparkContext

    conf = session.build_conf() | index_executors.slot_conf(1)
    conf |= {
        "spark.master": f"local-cluster[{count},1,600]",
        "spark.executor.memory": "512m",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(sys.path),
        "spark.executor.extraJavaOptions": session.java_options(None),
    }
    context = SparkContext(conf=SparkConf().setAppName("index").setAll(list(conf.items())))
    stores = {"lake": partial(open_store, location)}
    with index_executors.coordinated(
        context, stores, count, shard_size=1, facts=eager
    ) as coordinator:
        service = IndexService(
            {"lake": partial(open_index, location)}, AnswerFiles(None), coordinator=coordinator
        )
        with FlightServer(service, "127.0.0.1", 0) as server:
            sys.stdout.write(f"PORT {server.port}\n")
            sys.stdout.flush()
            sys.stdin.read()
    context.stop()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
