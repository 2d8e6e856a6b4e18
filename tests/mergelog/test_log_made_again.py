"""A log that is removed and made again while writers have it open: that is how a table gets other
keys. Blocks that went with the old log are never committed."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pytest

from mergelog.lake import in_memory, table
from support.lake.memory_store import Call, MemoryStore
from tandem.delta.log.delta_log import DeltaLog
from tandem.errors import CommitConflict, InvalidSpec
from tandem.mergelog.log_table import CHECKPOINT_INTERVAL, LogSettings, MergeLog, ensure_log
from tandem.mergelog.view import MergedView
from tandem.mergelog.writer import Appended, LogWriter, Upload

BOTH = ("k", "p")
EU, US = (1, "a", "eu"), (1, "b", "us")


@dataclass
class Remade:
    """A table whose log is made again. `nonce` decides the id of the log."""

    store: MemoryStore
    log: MergeLog

    @classmethod
    def at_first(cls) -> Remade:
        store = in_memory()
        found = cls(store, MergeLog(DeltaLog(store)))
        found._make(("k",), "first")
        return found

    def again(self, *keys: str, ordering: str = "", nonce: str = "second") -> None:
        self.store.delete([path for path in self.store.paths() if path.startswith("_tandem/log/")])
        self._make(keys, nonce, ordering)

    def _make(self, keys: tuple[str, ...], nonce: str, ordering: str = "") -> None:
        assert ensure_log(self.log, LogSettings(keys, ordering), now_ms=0, nonce=nonce)

    def writer(self, name: str = "w") -> LogWriter:
        return LogWriter(self.log, name, pause=lambda _: None)

    def rows(self) -> list[tuple[object, ...]]:
        found = MergedView.open(self.log).scan().read_all().to_pylist()
        return sorted((tuple(row.values()) for row in found), key=repr)


@pytest.fixture
def remade() -> Remade:
    return Remade.at_first()


def test_an_open_writer_appends_by_the_keys_that_the_log_has_now(remade: Remade) -> None:
    writer = remade.writer()
    writer.append(table((9, "old", "eu")), batch=0)
    remade.again(*BOTH)
    assert writer.append(table(EU, US), batch=1) == Appended(1)
    assert remade.rows() == [EU, US]
    with pytest.raises(InvalidSpec) as caught:
        writer.append(pa.table({"k": [2], "p": pa.array([None], pa.string())}), batch=2)
    assert caught.value.field == "p"
    assert remade.rows() == [EU, US]


def test_an_open_writer_appends_by_the_ordering_column_that_the_log_has_now(remade: Remade) -> None:
    writer = remade.writer()
    writer.append(table((9, "old", "eu")), batch=0)
    remade.again("k", ordering="v")
    writer.append(table((1, "b", "greater"), (1, "a", "later")), batch=1)
    assert remade.rows() == [(1, "b", "greater")]


@pytest.mark.parametrize(
    ("keys", "nonce"), [(BOTH, "first"), (("k",), "second")], ids=["other keys", "another log"]
)
def test_a_writer_that_has_uploaded_uploads_again(
    remade: Remade, keys: tuple[str, ...], nonce: str
) -> None:
    """Its block went with the old log, and its version is that of another writer."""
    writer = remade.writer()
    uploaded: list[str] = []

    def make_again(call: Call) -> None:
        if call.name == "put_if_absent" and not uploaded:
            uploaded.extend(path for path in remade.store.paths() if "/blocks/" in path)
            remade.again(*keys, nonce=nonce)
            remade.writer("faster").append(table((2, "f", "eu")), batch=0)

    remade.store.fault = make_again
    assert writer.append(table(EU, US), batch=0) == Appended(2)
    remade.store.fault = None
    assert len(uploaded) == 1
    assert remade.rows() == [*([EU, US] if keys == BOTH else [US]), (2, "f", "eu")]


@pytest.mark.parametrize(
    ("keys", "nonce"), [(BOTH, "first"), (("k",), "second")], ids=["other keys", "another log"]
)
def test_an_upload_for_the_log_before_is_refused(
    remade: Remade, keys: tuple[str, ...], nonce: str
) -> None:
    """The tasks of a Spark write have a log that the driver no longer finds."""
    early = remade.writer("early")
    upload = Upload.begin(remade.log)
    part = upload.write(remade.log.store, table(EU), None)
    remade.again(*keys, nonce=nonce)
    for writer in (early, remade.writer("late")):
        with pytest.raises(CommitConflict, match="the log was made again"):
            writer.append_uploaded([part], batch=0)
    assert remade.log.snapshot().version == 0
    assert remade.rows() == []


def test_a_writer_that_is_older_than_an_upload_looks_again(remade: Remade) -> None:
    writer = remade.writer()
    remade.again(*BOTH)
    part = Upload.begin(remade.log).write(remade.log.store, table(EU, US), None)
    assert writer.append_uploaded([part], batch=0) == Appended(1)
    assert remade.rows() == [EU, US]


def test_a_batch_that_only_the_log_before_had_is_appended(remade: Remade) -> None:
    writer = remade.writer()
    writer.append(table(EU), batch=7)
    remade.again("k")
    assert writer.append(table(EU), batch=7) == Appended(1)
    assert remade.rows() == [EU]


def test_an_open_writer_writes_checkpoints_of_the_log_that_was_made_again(remade: Remade) -> None:
    with remade.writer() as writer:
        for batch in range(CHECKPOINT_INTERVAL):
            writer.append(table(EU), batch=batch)
        remade.again("k")
        for batch in range(CHECKPOINT_INTERVAL + 1):
            writer.append(table(EU), batch=batch)
    assert remade.log.snapshot().checkpoint_version is not None
