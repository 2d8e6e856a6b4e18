"""What every store promises, run on memory, on a local disk and on a real S3 server."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.lake.memory_store import MemoryStore
from support.lake.s3 import S3Server
from tandem.errors import AlreadyExists, LocationNotAllowed, ObjectNotFound
from tandem.storage import Store, open_store, probe_put_if_absent

NAMES = [
    "a b",
    "a#x",
    "a%20b",
    "a&b=c",
    "a+b",
    "a-b",
    "a.b",
    "a/b",
    "a/b.c/d",
    "a0",
    "a:b",
    "a_:b",
    "file:/x",
    "p=a%2Fb/x",
    "run-10:00/x",
    "z~",
    "ü/é",
]


@pytest.fixture(params=["memory", "local", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "memory":
        return MemoryStore()
    if request.param == "local":
        return open_store(str(tmp_path / "table"))
    server: S3Server = request.getfixturevalue("s3_server")
    return server.open()


def paths(store: Store, prefix: str = "", start_after: str = "") -> list[str]:
    return [meta.path for meta in store.list(prefix, start_after=start_after)]


def test_an_object_is_read_whole_and_in_ranges(store: Store) -> None:
    store.put("a/b.bin", b"0123456789")
    assert store.get("a/b.bin") == b"0123456789"
    assert store.get_range("a/b.bin", 3, 4) == b"3456"
    assert store.get_range("a/b.bin", 8, 100) == b"89"
    assert store.get_range("a/b.bin", 10, 5) == b""
    assert store.get_range("a/b.bin", 50, 5) == b""
    assert store.get_range("a/b.bin", 2, 0) == b""
    head = store.head("a/b.bin")
    assert (head.path, head.size) == ("a/b.bin", 10)
    assert head == next(store.list())
    assert isinstance(store.get("a/b.bin"), bytes)


def test_a_put_replaces_what_was_there(store: Store) -> None:
    store.put("a", b"one")
    store.put("a", b"")
    assert store.get("a") == b""


def test_an_absent_object_is_named_as_such(store: Store) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.get("no/such"),
        lambda: store.head("no/such"),
        lambda: store.get_range("no/such", 0, 1),
        lambda: store.get_range("no/such", 0, 0),
        lambda: store.open_input("no/such"),
    ]
    for call in calls:
        with pytest.raises(ObjectNotFound) as caught:
            call()
        assert "no/such" in caught.value.resource


def test_a_folder_is_not_an_object(store: Store) -> None:
    store.put("folder/file", b"x")
    with pytest.raises(ObjectNotFound):
        store.get("folder")
    with pytest.raises(ObjectNotFound):
        store.head("folder")
    with pytest.raises(ObjectNotFound):
        store.open_input("folder")


def test_put_if_absent_creates_once(store: Store) -> None:
    store.put_if_absent("_delta_log/00.json", b"first")
    with pytest.raises(AlreadyExists):
        store.put_if_absent("_delta_log/00.json", b"second")
    assert store.get("_delta_log/00.json") == b"first"
    assert paths(store) == ["_delta_log/00.json"]


def test_put_if_absent_has_one_winner_among_threads(store: Store) -> None:
    words = [f"writer {number}".encode() * 1000 for number in range(8)]
    for key in range(10):

        def create(word: bytes, path: str = f"race/{key}") -> bytes | None:
            try:
                store.put_if_absent(path, word)
            except AlreadyExists:
                return None
            return word

        with ThreadPoolExecutor(8) as pool:
            winners = [word for word in pool.map(create, words) if word]
        assert winners == [store.get(f"race/{key}")]


def test_the_probe_accepts_and_leaves_nothing(store: Store) -> None:
    probe_put_if_absent(store)
    assert paths(store) == []


def test_listing_is_in_order_of_full_paths(store: Store) -> None:
    for name in NAMES:
        store.put(name, name.encode())
    assert paths(store) == sorted(NAMES)
    assert [store.get(name) for name in sorted(NAMES)] == [n.encode() for n in sorted(NAMES)]
    for after in [*NAMES, "", "a", "a/", "b", "zz"]:
        assert paths(store, start_after=after) == [n for n in sorted(NAMES) if n > after]


def test_listing_a_prefix_means_a_folder(store: Store) -> None:
    for name in ("ab/c", "a/b", "a/c/d", "a.x"):
        store.put(name, b"")
    assert paths(store, "a") == ["a/b", "a/c/d"]
    assert paths(store, "a/") == ["a/b", "a/c/d"]
    assert paths(store, "a", "a/b") == ["a/c/d"]
    assert paths(store, "nothing") == []


def test_a_listing_goes_on_where_the_last_page_ended(store: Store) -> None:
    names = [f"_delta_log/{number:020}.json" for number in range(30)]
    for name in names:
        store.put(name, b"{}")
    found: list[str] = []
    while more := paths(store, "_delta_log", found[-1] if found else "")[:7]:
        found += more
    assert found == names


def test_delete_ignores_absent_objects(store: Store) -> None:
    for name in ("a", "b/c", "b/d"):
        store.put(name, b"")
    store.delete(["a", "no", "b/c"])
    store.delete([])
    assert paths(store) == ["b/d"]


def test_delete_prefix_takes_the_folder_only(store: Store) -> None:
    for name in ("a/b", "a/c/d", "ab", "a.b"):
        store.put(name, b"")
    assert store.delete_prefix("a") == 2
    assert store.delete_prefix("never") == 0
    assert paths(store) == ["a.b", "ab"]


def test_delete_prefix_keeps_the_excluded_objects(store: Store) -> None:
    for name in ("a/b", "a/c/d", "a/c/e", "a/f", "b"):
        store.put(name, name.encode())
    assert store.delete_prefix("a", keep={"a/c/d", "a/f", "a/absent", "b"}) == 2
    assert paths(store) == ["a/c/d", "a/f", "b"]
    assert store.get("a/c/d") == b"a/c/d"
    # Only a whole path says what stays.
    assert store.delete_prefix("a", keep=["a/c", "f"]) == 2
    assert paths(store) == ["b"]


def test_a_writer_publishes_on_close_and_not_before(store: Store) -> None:
    with store.open_output("out/file") as output:
        output.write(b"a" * 100_000)
        output.write(memoryview(b"bc"))
        assert output.tell() == 100_002
        assert paths(store) == []
    assert store.get("out/file") == b"a" * 100_000 + b"bc"


def test_a_large_object_is_written_in_parts(store: Store) -> None:
    block = bytes(range(256)) * 4096  # 1 MiB
    with store.open_output("large") as output:
        for _ in range(25):
            output.write(block)
    assert store.head("large").size == 25 * len(block)
    assert store.get_range("large", 24 * len(block), 4096) == block[:4096]


@pytest.mark.parametrize("size", [10, 25 * 1024 * 1024])
def test_a_writer_that_fails_leaves_nothing(store: Store, size: int) -> None:
    def fail() -> None:
        with store.open_output("out/file") as output:
            output.write(b"a" * size)
            raise KeyError("in between")

    with pytest.raises(KeyError):
        fail()
    assert paths(store) == []


def test_a_writer_that_is_dropped_leaves_nothing(store: Store) -> None:
    output = store.open_output("out/file")
    output.write(b"half")
    del output
    assert paths(store) == []


def test_a_writer_is_unusable_after_a_failed_write(store: Store) -> None:
    output = store.open_output("out/file")
    output.write(b"half")
    with pytest.raises(TypeError):
        output.write(object())  # type: ignore[call-overload]
    output.close()
    assert paths(store) == []


def test_parquet_round_trips(store: Store) -> None:
    table = pa.table({"id": range(200_000), "text": [str(n) for n in range(200_000)]})
    with store.open_output("part.parquet") as output:
        pq.write_table(table, output, row_group_size=10_000)
    with store.open_input("part.parquet") as source:
        file = pq.ParquetFile(source)
        assert file.metadata.num_row_groups == 20
        assert file.read_row_group(7, columns=["id"]).column("id").to_pylist()[0] == 70_000
        assert file.read().equals(table)


def test_a_reader_seeks_like_a_file(store: Store) -> None:
    content = bytes(range(256)) * 3000
    store.put("file", content)
    model = io.BytesIO(content)
    with store.open_input("file") as source:
        moves = [(0, 0, 10), (700_000, 0, 5), (-3, 2, 100), (1, 0, 600_000), (-50, 1, 60)]
        for offset, whence, size in moves:
            assert source.seek(offset, whence) == model.seek(offset, whence)
            assert source.read(size) == model.read(size)
            assert source.tell() == model.tell()
        source.seek(0)
        assert source.read() == content


def test_paths_that_leave_the_root_are_refused_by_every_call(store: Store) -> None:
    for path in (
        "../x",
        "a/../../x",
        "/etc/passwd",
        "a//b",
        "s3://other/x",
        "a\\b",
        "%2e%2e/x",
        "",
    ):
        calls: list[Callable[[str], object]] = [
            store.get,
            store.head,
            lambda p: store.get_range(p, 0, 1),
            lambda p: store.put(p, b""),
            lambda p: store.put_if_absent(p, b""),
            lambda p: store.delete([p]),
            store.open_input,
            store.open_output,
            store.delete_prefix,
            lambda p: list(store.list(p or "..")),
        ]
        for call in calls:
            with pytest.raises(LocationNotAllowed) as caught:
                call(path)
            assert caught.value.expected
            assert caught.value.remedy
    assert paths(store) == []


def test_absolute_paths_below_the_root_are_accepted(store: Store) -> None:
    store.put("dv/x.bin", b"here")
    assert store.get(f"{store.location}/dv/x.bin") == b"here"


def test_a_store_crosses_process_borders(
    store: Store, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(store, MemoryStore):
        assert store.copy().paths() == store.paths()
        return
    store.put("a", b"x")
    text = pickle.dumps(store)
    assert s3_server.secret_key.encode() not in text
    for name, value in s3_server.environ.items():
        monkeypatch.setenv(name, value)
    assert pickle.loads(text).get("a") == b"x"


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    script=st.lists(
        st.tuples(
            st.sampled_from(["put", "create", "delete", "folder"]),
            st.sampled_from(["a", "a.b", "a-/b", "b/c/d", "b/c.d", "b.c/d", "b/e"]),
            st.binary(max_size=3),
        ),
        max_size=12,
    )
)
def test_a_random_script_ends_as_in_a_dictionary(
    store: Store, script: list[tuple[str, str, bytes]]
) -> None:
    store.delete(paths(store))
    model: dict[str, bytes] = {}
    for word, path, data in script:
        if word == "put":
            store.put(path, data)
            model[path] = data
        elif word == "create":
            if path in model:
                with pytest.raises(AlreadyExists):
                    store.put_if_absent(path, data)
            else:
                store.put_if_absent(path, data)
                model[path] = data
        elif word == "delete":
            store.delete([path])
            model.pop(path, None)
        else:
            folder = path.split("/")[0] + "_"
            store.delete_prefix(folder)
    assert paths(store) == sorted(model)
    assert {path: store.get(path) for path in paths(store)} == model
