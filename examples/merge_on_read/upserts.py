"""Upserts and deletes by key beside a Delta table; rows in DuckDB and Polars.

python examples/merge_on_read/upserts.py /tmp/orders
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import duckdb
import polars as pl
import pyarrow as pa
from deltalake import write_deltalake

from tandem import mergelog


def main(location: str) -> None:
    orders = pa.table({"id": [1, 2, 3], "state": ["new", "new", "new"], "amount": [10, 20, 30]})
    write_deltalake(location, orders, configuration={"delta.enableDeletionVectors": "true"})

    log = mergelog.open_log(location)
    settings = mergelog.LogSettings(keys=("id",))
    mergelog.ensure_log(log, settings, now_ms=time.time_ns() // 1_000_000, nonce=location)

    # Batches are numbered: one that is appended twice, for example after a crash, counts once.
    with mergelog.LogWriter(log, "shop") as writer:
        changed = pa.table({"id": [2, 4], "state": ["paid", "new"], "amount": [20, 40]})
        writer.append(changed, batch=0)
        writer.append(deletes=pa.table({"id": [1]}), batch=1)

    by_state = duckdb.from_arrow(mergelog.scan(location))
    print(by_state.aggregate("state, count(*) AS orders, sum(amount) AS amount").order("state"))
    print(pl.DataFrame(mergelog.scan(location, ["id", "state"]).read_all()).sort("id"))


if __name__ == "__main__":
    main(str(Path(sys.argv[1]).absolute()))
