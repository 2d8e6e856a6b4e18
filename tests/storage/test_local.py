"""The local disk: full, forbidden, or with a writer killed in the middle."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import obstore
import pytest
from obstore.store import LocalStore as ObstoreLocal

from tandem.errors import (
    AccessDenied,
    AlreadyExists,
    OutcomeUnknown,
    StorageError,
    StorageFull,
    StoreUnsuitable,
)
from tandem.storage import Store, open_store, probe_put_if_absent
from tandem.storage import local as local_module

WRITES: list[Callable[[Store], None]] = [
    lambda store: store.put("new/file", b"x" * 5000),
    lambda store: store.put_if_absent("new/file", b"x" * 5000),
    lambda store: _stream(store),
]


def _stream(store: Store) -> None:
    with store.open_output("new/file") as output:
        output.write(b"x" * 5000)


def files_below(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_reported_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Store], None], number: int
) -> None:
    real_write = os.write
    left = 3000

    def full(fd: int, data: bytes) -> int:
        nonlocal left
        if left == 0:
            raise OSError(number, os.strerror(number))
        written = real_write(fd, data[:left])
        left -= written
        return written

    store = open_store(str(tmp_path))
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(StorageFull) as caught:
        write(store)
    assert caught.value.resource.endswith("new/file")
    assert caught.value.remedy
    assert files_below(tmp_path) == []


@pytest.mark.parametrize("write", WRITES)
def test_a_failing_sync_publishes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Callable[[Store], None]
) -> None:
    (tmp_path / "new").mkdir()

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StorageError):
        write(open_store(str(tmp_path)))
    assert files_below(tmp_path) == []


def test_visible_but_perhaps_not_durable_is_an_unknown_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(folder: str) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(local_module, "_sync_folder", fail)
    store = open_store(str(tmp_path))
    with pytest.raises(OutcomeUnknown):
        store.put_if_absent("commit", b"x")
    assert store.get("commit") == b"x"
    assert files_below(tmp_path) == ["commit"]


@contextmanager
def without_privileges() -> Iterator[None]:
    """Root may do anything; the block runs as the user `nobody`."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_missing_permission_is_reported(tmp_path: Path) -> None:
    root = tmp_path / "table"
    root.mkdir()
    (root / "secret").write_bytes(b"x")
    (root / "secret").chmod(0o000)
    root.chmod(0o555)
    store = open_store(str(root))
    try:
        with without_privileges():
            for call in (
                lambda: store.get("secret"),
                lambda: store.put("other", b""),
                lambda: store.put_if_absent("other", b""),
                lambda: probe_put_if_absent(store),
            ):
                with pytest.raises(AccessDenied) as caught:
                    call()
                assert caught.value.remedy
    finally:
        root.chmod(0o755)


def test_a_file_system_without_hard_links_is_unsuitable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(source: str, target: str) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(StoreUnsuitable, match="hard links"):
        probe_put_if_absent(open_store(str(tmp_path)))
    assert files_below(tmp_path) == []


KILLED = """
import sys
from tandem.storage import open_store
store = open_store(sys.argv[1])
store.put_if_absent("job/whole", b"whole")
output = store.open_output("job/part.parquet")
output.write(b"half of it")
print("written", flush=True)
sys.stdin.read()
"""


def test_files_of_a_killed_writer_are_visible_only_to_cleaning(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"written\n"
        child.send_signal(signal.SIGKILL)
    store = open_store(str(tmp_path))
    assert [meta.path for meta in store.list()] == ["job/whole"]
    assert len(files_below(tmp_path)) == 2
    # What another engine's listing through object_store sees is the same.
    foreign = [meta["path"] for chunk in obstore.list(ObstoreLocal(tmp_path)) for meta in chunk]
    assert foreign == ["job/whole"]
    assert store.delete_prefix("job", keep=["job/whole"]) == 1
    assert files_below(tmp_path) == ["job/whole"]
    assert store.delete_prefix("job") == 1
    assert files_below(tmp_path) == []


def test_creates_of_tandem_and_of_object_store_exclude_each_other(tmp_path: Path) -> None:
    ours, theirs = open_store(str(tmp_path)), ObstoreLocal(tmp_path)
    ours.put_if_absent("a", b"ours")
    with pytest.raises(obstore.exceptions.AlreadyExistsError):
        obstore.put(theirs, "a", b"theirs", mode="create")
    obstore.put(theirs, "b", b"theirs", mode="create")
    with pytest.raises(AlreadyExists):
        ours.put_if_absent("b", b"ours")
    assert (ours.get("a"), ours.get("b")) == (b"ours", b"theirs")


def test_half_written_objects_of_object_store_are_hidden(tmp_path: Path) -> None:
    (tmp_path / "part.parquet#1").write_bytes(b"")
    (tmp_path / "c#").write_bytes(b"")
    (tmp_path / "c#sharp").write_bytes(b"")
    assert [meta.path for meta in open_store(str(tmp_path)).list()] == ["c#", "c#sharp"]


def test_long_names_are_written_too(tmp_path: Path) -> None:
    store = open_store(str(tmp_path))
    store.put_if_absent("é" * 127, b"x")
    assert store.get("é" * 127) == b"x"
    with pytest.raises(StorageError):
        store.put("n" * 300, b"")


def test_delete_prefix_does_not_follow_links(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_bytes(b"x")
    (tmp_path / "table" / "job").mkdir(parents=True)
    (tmp_path / "table" / "job" / "link").symlink_to(tmp_path / "outside")
    assert open_store(str(tmp_path / "table")).delete_prefix("job") == 1
    assert (tmp_path / "outside" / "file").read_bytes() == b"x"
    assert not (tmp_path / "table" / "job").exists()
