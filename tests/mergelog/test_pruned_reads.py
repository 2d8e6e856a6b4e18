"""The keys of a log are looked up in those files of the base table only that can hold them."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from tandem.delta.log.delta_log import DeltaLog
from tandem.mergelog.create import ensure_log
from tandem.mergelog.rows import winners
from tandem.mergelog.state.log_table import LogSettings, MergeLog
from tandem.mergelog.view import MergedView
from tandem.mergelog.writer import LogWriter
from tandem.storage.local import LocalStore


class CountingStore(LocalStore):
    """Counts how often each data file is opened."""

    def __init__(self, location: str) -> None:
        super().__init__(location)
        self.opened: dict[str, int] = {}

    def open_input(self, path: str) -> BinaryIO:
        self.opened[path] = self.opened.get(path, 0) + 1
        return super().open_input(path)


def write_base(folder: Path) -> None:
    """Four files of a hundred keys each."""
    for start in range(0, 400, 100):
        rows = pa.table({"id": pa.array(range(start, start + 100)), "v": ["base"] * 100})
        write_deltalake(
            str(folder),
            rows,
            mode="append",
            configuration={"delta.enableDeletionVectors": "true"},
        )


def test_files_without_a_key_of_the_log_are_read_once(tmp_path: Path) -> None:
    write_base(tmp_path)
    store = CountingStore(tmp_path.as_uri())
    log = MergeLog(DeltaLog(store))
    ensure_log(log, LogSettings(("id",)), now_ms=0, nonce="made once")
    with LogWriter(log, "w") as writer:
        writer.append(pa.table({"id": [150, 999], "v": ["new", "new"]}), batch=0)
    store.opened.clear()
    found = MergedView.open(log).scan().read_all()
    assert found.num_rows == 401
    assert sorted(found.filter(pa.compute.equal(found["v"], "new"))["id"].to_pylist()) == [150, 999]
    base = {path: times for path, times in store.opened.items() if not path.startswith("_tandem")}
    assert sorted(base.values()) == [1, 1, 1, 2]


def test_of_very_many_keys_a_file_between_the_extremes_is_not_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(winners, "MOST_KEYS", 2)
    write_base(tmp_path)
    log = MergeLog(DeltaLog(LocalStore(tmp_path.as_uri())))
    ensure_log(log, LogSettings(("id",)), now_ms=0, nonce="made once")
    with LogWriter(log, "w") as writer:
        writer.append(pa.table({"id": [50, 250, 350], "v": ["new"] * 3}), batch=0)
    found = MergedView.open(log).scan().read_all()
    assert found.num_rows == 400
    new = found.filter(pa.compute.equal(found["v"], "new"))
    assert sorted(new["id"].to_pylist()) == [50, 250, 350]
