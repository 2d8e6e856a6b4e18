"""A trace on a merge-on-read table of Tandem: `LogWriter`, `LogCompaction` and `LogMerge`."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import write_deltalake

from mergelog.hudi.trace import Batch, Trace
from mergelog.orders import MERGE, STITCH, Orders, Rows
from tandem import mergelog


def answers(folder: Path, trace: Trace) -> list[Rows]:
    """The rows after each step."""
    location = str(folder)
    vectors = {"delta.enableDeletionVectors": "true"}
    write_deltalake(location, _table(trace.base), configuration=vectors)
    log = mergelog.open_log(location)
    settings = mergelog.LogSettings(("id",), "at" if trace.ordered else "")
    mergelog.ensure_log(log, settings, now_ms=0, nonce="made once")
    orders = Orders(folder)
    found = []
    with mergelog.LogWriter(log, "trace", pause=lambda _: None) as writer:
        for number, step in enumerate(trace.steps):
            if isinstance(step, str):
                spec = STITCH if step == "stitch" else MERGE
                orders.do(spec, name=f"step-{number}")
            else:
                upserts = tuple(record for record in step if record[2] is not None)
                deletes = tuple(record for record in step if record[2] is None)
                keys = _table(deletes).select(list(settings.columns))
                writer.append(_table(upserts), keys, batch=number)
            found.append(orders.view())
    return found


def _table(records: Batch) -> pa.Table:
    ids, at, values = zip(*records, strict=True) if records else ((), (), ())
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "at": pa.array(at, pa.int64()),
            "value": pa.array(values, pa.string()),
        }
    )
