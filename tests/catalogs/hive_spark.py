"""Spark with a Hive Metastore as its catalog makes Delta tables, in a process of its own:

    python -m catalogs.hive_spark URI FOLDER

An external table `spark.orders` in FOLDER/`my orders`, and `spark.returns` where its database is.
"""

from __future__ import annotations

import sys

from delta_session import start_session


def main() -> None:
    uri, folder = sys.argv[1:]
    session = start_session(
        conf={
            "spark.sql.catalogImplementation": "hive",
            "spark.hadoop.hive.metastore.uris": uri,
            "spark.sql.warehouse.dir": f"{folder}/warehouse",
        }
    )
    for statement in (
        f"CREATE DATABASE spark LOCATION 'file:{folder}/spark'",
        f"CREATE TABLE spark.orders USING delta LOCATION 'file:{folder}/my orders' "
        "AS SELECT id FROM range(10)",
        "CREATE TABLE spark.returns USING delta AS SELECT id FROM range(5)",
        "CREATE TABLE spark.plain USING parquet AS SELECT id FROM range(5)",
        "CREATE VIEW spark.seen AS SELECT * FROM spark.orders",
    ):
        session.sql(statement)
    session.stop()


if __name__ == "__main__":
    main()
