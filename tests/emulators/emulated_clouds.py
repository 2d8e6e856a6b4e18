"""Azure and GCS by their emulators: put-if-absent, listings, and a compaction by the command line.

`make emulators` runs it; `make test` does not, since it would install Node packages.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from emulators.servers import Cloud, azure, google, programs
from tandem.errors import AlreadyExists, ObjectNotFound
from tandem.storage import open_store, probe_put_if_absent


@pytest.fixture(scope="module", params=[google, azure], ids=["gs", "abfss"])
def cloud(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cloud]:
    program = programs()[0 if request.param is google else 1]
    with request.param(program, tmp_path_factory.mktemp("cloud")) as found:
        yield found


def test_an_object_is_created_only_if_it_is_absent(cloud: Cloud) -> None:
    store = cloud.open(f"{cloud.root}/probed")
    probe_put_if_absent(store)
    store.put_if_absent("_delta_log/1.json", b"first")
    with pytest.raises(AlreadyExists):
        store.put_if_absent("_delta_log/1.json", b"second")
    assert store.get("_delta_log/1.json") == b"first"


def test_objects_are_listed_in_order_and_deleted(cloud: Cloud) -> None:
    store = cloud.open(f"{cloud.root}/listed")
    names = ["a", "a-b", "a/b", "a/c%20d", "a/c d", "b/x=1/y"]
    for name in names:
        store.put(name, name.encode())
    assert [found.path for found in store.list()] == sorted(names)
    assert [found.path for found in store.list("a")] == ["a/b", "a/c d", "a/c%20d"]
    assert [found.path for found in store.list(start_after="a/b")] == sorted(names)[3:]
    assert all(store.get(name) == name.encode() for name in names)
    assert store.get_range("a/b", 1, 5) == b"/b"
    store.delete(["a/b", "never there", "a"])
    with pytest.raises(ObjectNotFound):
        store.head("a/b")
    assert store.delete_prefix("a") == 2


def test_a_table_is_compacted(cloud: Cloud, tmp_path: Path) -> None:
    """Small loads become one file; the rows are read back by `deltalake`."""
    before, after = tmp_path / "before", tmp_path / "after"
    for load in range(6):
        ids = pa.array(range(load * 10, load * 10 + 10), pa.int64())
        write_deltalake(before, pa.table({"id": ids}), mode="append")
    location = f"{cloud.root}/flights"
    store, local = cloud.open(location), open_store(str(before))
    for found in local.list():
        store.put(found.path, local.get(found.path))
    options = [
        word for key, value in cloud.options.items() for word in ("--option", f"{key}={value}")
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tandem.cli.main", "compact", location, *options],
        env={**os.environ, **cloud.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    copied = open_store(str(after))
    for found in store.list():
        copied.put(found.path, store.get(found.path))
    table = DeltaTable(after)
    assert len(table.file_uris()) == 1
    assert sorted(pa.table(table.scan())["id"].to_pylist()) == list(range(60))
