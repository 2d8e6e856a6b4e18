"""The log of a table of rows (`support.lake.rows`) by its key `id`: appends, live blocks, view."""

from __future__ import annotations

import pyarrow as pa

from support.lake import rows as model
from support.lake.rows import Rows
from tandem import mergelog
from tandem.mergelog.versions import in_order

KEYS = ("id",)


class LogBlocks:
    """One writer, and what readers see. `made`: the log is made, unless it is there."""

    def __init__(self, location: str, writer: str, *, made: bool = False) -> None:
        self._log = mergelog.open_log(location)
        if made:
            settings = mergelog.LogSettings(KEYS)
            mergelog.ensure_log(self._log, settings, now_ms=0, nonce=location)
        self._name = writer
        self._writer: mergelog.LogWriter | None = None
        self._batches = 0

    def begin(self) -> None:
        """Open the writer, which reads the log as it is now."""
        self._writer = mergelog.LogWriter(self._log, self._name, pause=lambda _: None)

    def upsert(self, rows: Rows) -> None:
        self._append(model.table(rows), None)

    def delete(self, *ids: int) -> None:
        self._append(None, pa.table({"id": pa.array(ids, pa.int64())}))

    def _append(self, rows: pa.Table | None, deletes: pa.Table | None) -> None:
        if self._writer is None:
            self.begin()
            assert self._writer is not None
        with self._writer as writer:
            writer.append(rows, deletes, batch=self._batches)
        self._writer = None
        self._batches += 1

    @property
    def version(self) -> int:
        return self._log.log.latest_version()

    def blocks(self) -> list[tuple[int, int]]:
        """First and last instant of each live block."""
        live = mergelog.MergedView.open(self._log).state.live
        return [(block.first, block.last) for block in in_order(live.values())]

    def view(self, version: int | None = None) -> Rows:
        """The merged view, of a version of the base table or the newest."""
        view = mergelog.MergedView.open(self._log, version)
        found = view.scan(["id", "k", "v"]).read_all()
        columns = [column.to_pylist() for column in found.columns]
        return tuple(sorted(zip(*columns, strict=True)))
