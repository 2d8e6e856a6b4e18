"""A reader looks at the log and then at the base table; what is merged in between must not be lost
to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from deltalake import write_deltalake

from mergelog.orders import MERGE, Orders, make, rows, sorted_rows
from tandem import mergelog
from tandem.delta.log.snapshot import Snapshot
from tandem.spec.status import Phase


def test_a_reader_that_a_merge_overtakes_sees_the_deletes_of_that_merge(tmp_path: Path) -> None:
    """It lists the log; a delete is appended and merged, and hides a row that comes after it; it
    lists the base table."""
    orders = Orders(make(tmp_path / "overtaken", "at"))
    log = _Overtaken(orders.log.base)

    def overtake() -> None:
        with mergelog.LogWriter(orders.log, "other", pause=lambda _: None) as writer:
            writer.append(None, rows(range(3, 4), "", 9).select(["id", "at"]), batch=0)
        assert orders.run(MERGE, name="overtakes").phase is Phase.SUCCEEDED
        write_deltalake(orders.location, rows(range(3, 4), "older", 6), mode="append")

    log.meanwhile = overtake
    found = sorted_rows(mergelog.MergedView.open(log).scan().read_all())
    assert log.meanwhile is None
    assert 3 not in [row[0] for row in found]
    assert found == orders.view()


class _Overtaken(mergelog.MergeLog):
    """A log whose reader is slow, once."""

    meanwhile: Callable[[], None] | None = None

    def snapshot(self, version: int | None = None) -> Snapshot:
        found = super().snapshot(version)
        act, self.meanwhile = self.meanwhile, None
        if act is not None:
            act()
        return found
