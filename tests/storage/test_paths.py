"""No path of a log leads out of a table, however it is written."""

from __future__ import annotations

import contextlib
import os
import tracemalloc
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from support.some import few
from tandem.errors import InvalidSpec, LocationNotAllowed, StorageError
from tandem.storage import Store, open_store
from tandem.storage.paths import (
    canonical_location,
    check_relative,
    object_path,
    path_identity,
    relative_to,
    resolve,
    split_location,
)

SECRET = b"outside"


@pytest.mark.parametrize(
    ("given_location", "canonical"),
    [
        ("/data/flights", "file:///data/flights"),
        ("/data/flights/", "file:///data/flights"),
        ("file:///data//flights/", "file:///data/flights"),
        ("file:/data/flights", "file:///data/flights"),
        ("FILE:///data/flights", "file:///data/flights"),
        ("file://localhost/data", "file:///data"),
        ("/data/a b%20c", "file:///data/a%20b%2520c"),
        ("file:///data/a%20b", "file:///data/a%20b"),
        ("s3a://bucket/x/", "s3://bucket/x"),
        ("s3://bucket", "s3://bucket"),
        ("gs://bucket/month=1", "gs://bucket/month=1"),
        (
            "abfss://box@account.dfs.core.windows.net/t",
            "abfss://box@account.dfs.core.windows.net/t",
        ),
    ],
)
def test_a_location_has_one_spelling(given_location: str, canonical: str) -> None:
    assert canonical_location(given_location) == canonical
    assert canonical_location(canonical) == canonical


@pytest.mark.parametrize(
    "location",
    [
        "data/flights",
        "",
        "./x",
        "http://bucket/x",
        "ftp:/x",
        "s3:bucket",
        "s3:///x",
        "s3://bucket/../other",
        "s3://bucket/%2e%2e/other",
        "/data/../etc",
        "file://host/share",
        "s3://bucket/x?versionId=1",
        "s3://bucket/x#y",
        "s3://bucket/a\x00b",
        "s3://bucket/a\\b",
        "gs://bucket/\ud800",
    ],
)
def test_a_bad_location_is_refused(location: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        canonical_location(location)
    assert caught.value.field == "location"
    assert caught.value.expected
    assert caught.value.remedy


@pytest.mark.parametrize(
    "location",
    ["s3://AKIAKEY:hunter2@bucket/x", "gs://hunter2@bucket/x", "abfss://a:hunter2@b.net/x"],
)
def test_credentials_in_a_location_are_refused_and_not_repeated(location: str) -> None:
    with pytest.raises(InvalidSpec, match="credentials") as caught:
        open_store(location)
    assert "hunter2" not in str(caught.value)


def test_absolute_paths_need_an_allowed_prefix() -> None:
    root, clone = "s3://lake/t", "s3://lake/source"
    assert resolve("s3://lake/t/a%b c", root).key == "a%b c"
    assert resolve("s3a://lake/source/x", root, [clone]).root == clone
    for path in ("s3://lake/source2/x", "s3://lake/tt/x", "s3://lake/t/../x", "file:///etc/passwd"):
        with pytest.raises(LocationNotAllowed) as caught:
            resolve(path, root, [clone])
        assert path in caught.value.found
        assert root in caught.value.expected
        assert clone in caught.value.expected
        assert "spec.storage.cloneSources" in caught.value.remedy
    with pytest.raises(LocationNotAllowed) as caught:
        resolve(object_path("run-10:00/x.parquet"), root, [clone])
    assert "%3A" in caught.value.remedy


@pytest.mark.parametrize(
    ("logged", "path"),
    [
        ("part.parquet", "part.parquet"),
        ("./part.parquet", "part.parquet"),
        ("x/.//./part.parquet", "x/part.parquet"),
        ("x/../part.parquet", "part.parquet"),
        ("%70art%20%2B+.parquet", "part ++.parquet"),
        ("aa%3Abb.parquet", "aa:bb.parquet"),
        ("./aa:bb.parquet", "aa:bb.parquet"),
        ("2024-01-01T10:00.parquet", "2024-01-01T10:00.parquet"),
        ("x/aa:bb.parquet", "x/aa:bb.parquet"),
        ("t=10%3A00/x", "t=10:00/x"),
        ("file%3A/x", "file:/x"),
        ("/data/a%20b", "file:///data/a b"),
        ("file:/data/a%20b", "file:///data/a b"),
        ("FILE:///data/./a", "file:///data/a"),
        ("s3a://bucket/a%3Ab", "s3a://bucket/a:b"),
        ("s3a://bucket//x/../a", "s3a://bucket/a"),
    ],
)
def test_a_logged_path_is_decoded_once_it_is_known_whether_it_is_absolute(
    logged: str, path: str
) -> None:
    assert object_path(logged) == path
    assert object_path(path_identity(logged)) == path
    root = "s3://bucket" if path.startswith("s3") else "file:///data"
    key = path.removeprefix("s3a://bucket/").removeprefix("file:///data/")
    assert resolve(path, root).key == key


@pytest.mark.parametrize(
    "logged",
    [
        "aa:bb.parquet",
        "file%3A%2F%2F%2Fdata/x",
        "s3%3A%2F%2Fbucket/x",
        "%2Fdata/x",
        "../x",
        "x/../../y",
        "%2e%2e/x",
        "x/%2E%2E/%2e%2e/y",
        "./%2e%2e/x",
        "file:///data/../x",
        "file:x",
        "s3:/data/x",
        "x/",
        "./",
        "/",
    ],
)
def test_decoding_leads_to_no_path_outside(logged: str) -> None:
    with pytest.raises(LocationNotAllowed):
        resolve(object_path(logged), "file:///data")


@pytest.mark.parametrize(
    ("spellings", "identity"),
    [
        (["a", "./a", "././/a", "x/../a"], "a"),
        (["/r/a", "file:/r/a", "file:///r/a", "FILE:/r/a", "/r/./a", "/r//a"], "file:///r/a"),
        (["./a:b", "././a:b"], "./a:b"),
        (["s3a://b/a", "s3a://b//x/../a"], "s3a://b/a"),
    ],
)
def test_files_have_the_identity_that_they_have_in_removes_of_spark(
    spellings: list[str], identity: str
) -> None:
    assert {path_identity(spelling) for spelling in spellings} == {identity}
    # Which readers all take for another file, as long as none of them decodes it.
    assert path_identity("%61") == "%61"


@given(path=st.lists(st.sampled_from(["a", "a:b", ".", "..", "", "file:", "s3:", "%2e"])))
def test_an_identity_is_its_own(path: list[str]) -> None:
    once = path_identity("/".join(path))
    assert path_identity(once) == once


def test_the_root_is_not_an_object() -> None:
    for path in ("s3://lake/t", "s3://lake/t/"):
        with pytest.raises(LocationNotAllowed):
            resolve(path, "s3://lake/t")


def test_partition_folders_are_ordinary_paths() -> None:
    for path in ("p=a%2Fb/x.parquet", "p=%3A/x", "d=2013-01-01 00%3A00/x", "p=../x", "...", "a..b"):
        assert check_relative(path) == path


PLAIN = ("", "a", "link", "file", "out", "up", "~", " ", "ü")
TRICKS = ("..", ".", "/", "//", "\\", "..\\", "%2e%2e", "%2E.", "%252e%252e", "%2f", "%5c")
STRANGE = ("file:", "file://", "s3://", "\x00", "\n", "\ud800")
PIECES = st.sampled_from((*PLAIN, *TRICKS, *STRANGE))
PATHS = st.one_of(
    st.lists(PIECES, max_size=7).map("/".join),
    st.lists(PIECES, max_size=7).map("".join),
    st.text(max_size=30),
)


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """See `set_trap`."""
    return set_trap(tmp_path / "trap")


@pytest.fixture(scope="module")
def lasting_trap(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One trap for all examples of a test, which may delete its links."""
    return set_trap(tmp_path_factory.mktemp("trap"))


def set_trap(base: Path) -> Path:
    """A table with links that lead out of it, and a neighbour that must not be touched."""
    root = base / "table"
    (root / "a" / "a").mkdir(parents=True)
    (base / "neighbour").mkdir()
    (base / "neighbour" / "file").write_bytes(SECRET)
    (base / "file").write_bytes(SECRET)
    (root / "file").write_bytes(b"inside")
    (root / "a" / "file").write_bytes(b"inside")
    (root / "link").symlink_to(base / "neighbour")
    (root / "a" / "up").symlink_to("../..")
    (root / "out").symlink_to(base / "file")
    (root / "a" / "link").symlink_to("../file")
    (root / "loop").symlink_to("loop")
    return root


def outside_of(root: Path) -> dict[str, bytes]:
    found = {}
    for parent, _, files in os.walk(root.parent):
        if not Path(parent).is_relative_to(root):
            found.update({f"{parent}/{name}": Path(parent, name).read_bytes() for name in files})
    return found


def read_all(store: Store, path: str) -> bytes:
    with store.open_input(path) as file:
        return file.read()


@settings(max_examples=few(50, 400), deadline=None)
@given(path=PATHS)
@example("link/file")
@example("a/up/file")
@example("out")
@example("loop")
@example("a/up/neighbour/new")
def test_no_path_escapes_from_a_real_folder(lasting_trap: Path, path: str) -> None:
    trap = lasting_trap
    store = open_store(str(trap))
    before = outside_of(trap)
    encoded = quote(path, errors="replace")
    for candidate in (path, encoded, f"{trap}/{path}", f"file://{trap}/{path}"):
        with contextlib.suppress(LocationNotAllowed, StorageError):
            assert store.get(candidate) != SECRET
        with contextlib.suppress(LocationNotAllowed, StorageError):
            assert read_all(store, candidate) != SECRET
        with contextlib.suppress(LocationNotAllowed, StorageError):
            store.put_if_absent(candidate, b"new")
        with contextlib.suppress(LocationNotAllowed, StorageError):
            store.delete([candidate])
        assert outside_of(trap) == before
    (trap / "file").write_bytes(b"inside")
    (trap / "a" / "file").write_bytes(b"inside")


@given(path=PATHS)
def test_an_accepted_path_joins_below_the_root(path: str) -> None:
    try:
        key = check_relative(path)
    except LocationNotAllowed:
        return
    assert os.path.normpath(f"/lake/{key}") == f"/lake/{key}"
    assert relative_to(f"file:///lake/{quote(key)}", "file:///lake") == key


def test_links_that_lead_out_are_named(trap: Path) -> None:
    store = open_store(str(trap))
    for path in ("link/file", "out", "a/up/file"):
        with pytest.raises(LocationNotAllowed, match="link") as caught:
            store.get(path)
        assert str(trap) in caught.value.expected
    listed = {meta.path for meta in store.list()}
    assert {"a/file", "file"} <= listed
    assert not listed & {"out", "loop", "link/file", "a/up/file"}


def test_a_root_that_is_a_link_is_fine(trap: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(trap)
    assert open_store(str(tmp_path / "alias")).get("file") == b"inside"


def test_allowed_prefixes_are_for_reading_only(trap: Path) -> None:
    neighbour = str(trap.parent / "neighbour")
    store = open_store(str(trap), allowed_prefixes=[neighbour])
    assert store.get(f"{neighbour}/file") == SECRET
    assert store.head(f"file://{neighbour}/file").size == len(SECRET)
    for write in (
        lambda: store.put(f"{neighbour}/file", b""),
        lambda: store.put_if_absent(f"{neighbour}/new", b""),
        lambda: store.delete([f"{neighbour}/file"]),
        lambda: store.open_output(f"{neighbour}/new"),
        lambda: store.delete_prefix(f"{neighbour}/x"),
    ):
        with pytest.raises(LocationNotAllowed):
            write()


def test_long_paths_of_a_log_are_not_kept() -> None:
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(50):
            path = f"/data/{number}/" + "a" * 40_000
            location = canonical_location(path)
            assert location == f"file://{path}"
            assert split_location(location)[2] == path
            assert check_relative(path[1:]) == path[1:]
        left = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    # Of 2 MB, up to four times over.
    assert left < 500_000
