"""Lines and options of sources: every line once however a file is cut; unknown options refused."""

from __future__ import annotations

import bz2
import gzip
import json
from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.lake.memory_store import MemoryStore
from tandem.errors import DataFileMissing, InvalidSpec, StatementFailed
from tandem.spark.runtime.listing import schema_string
from tandem.spark.sources import text_files
from tandem.spark.sources.options import checked, storage_options
from tandem.spark.sources.text_files import read_text, split_lines
from tandem.spark.sources.text_frames import plan
from tandem.spark.sources.text_records import TextFile

TEXTS = st.lists(st.text("ab\u00e9\u2028", max_size=6), max_size=12)
ENDS = st.sampled_from(["\n", "\r\n"])


def read(store: MemoryStore, path: str, *span: int) -> list[str]:
    texts = read_text(store, path, "utf-8", *span)
    return [line for text in texts for line in split_lines(text)]


@given(TEXTS, ENDS, st.booleans(), st.booleans(), st.integers(3, 9), st.integers(1, 9))
def test_every_line_is_in_exactly_one_split(
    texts: list[str], end: str, closed: bool, marked: bool, block: int, size: int
) -> None:
    text = end.join(texts) + (end if closed and texts else "")
    data = (b"\xef\xbb\xbf" if marked else b"") + text.encode()
    store = MemoryStore()
    store.put("f", data)
    expected = texts if closed or not texts or texts[-1] else texts[:-1]
    before = text_files.BLOCK_BYTES
    text_files.BLOCK_BYTES = block
    try:
        found = [
            line
            for splits in plan([TextFile(path="f", size=len(data))], size)
            for split in splits.splits
            for line in read(store, "f", split.of(len(data)).start, split.of(len(data)).stop)
        ]
    finally:
        text_files.BLOCK_BYTES = before
    assert found == expected


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress)])
def test_compressed_files_are_one_split(suffix: str, pack: Callable[[bytes], bytes]) -> None:
    text = "".join(f"line {i}\n" for i in range(10_000))
    store = MemoryStore()
    store.put(f"f{suffix}", pack(text.encode()))
    [splits] = plan([TextFile(path=f"f{suffix}", size=10_000)], 100)
    [split] = splits.splits
    assert split.of(10_000) == range(10_000)
    assert read(store, f"f{suffix}", 0, 10_000) == text.splitlines()


def test_bytes_that_are_not_utf8_are_an_error() -> None:
    store = MemoryStore()
    store.put("f", b"caf\xe9\n")
    with pytest.raises(StatementFailed, match="0xe9"):
        read(store, "f")
    assert list(read_text(store, "f", "iso-8859-1")) == ["caf\u00e9\n"]
    with pytest.raises(DataFileMissing):
        read(store, "gone")


def test_options_are_known_by_any_case_and_alias() -> None:
    found = checked("Csv", {"HEADER": "True", "Delimiter": ";", "charset": "UTF8"})
    assert found == {"header": "True", "sep": ";", "encoding": "utf-8"}


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ("Csv", {"mode": "DROPMALFORMED"}),
        ("Csv", {"sep": ";", "delimiter": ","}),
        ("Csv", {"multiLine": "true"}),
        ("Csv", {"encoding": "utf-16"}),
        ("Csv", {"header": "yes"}),
        ("Json", {"columnNameOfCorruptRecord": "x"}),
        ("Parquet", {"pathGlobFilter": "*"}),
        ("Orc", {}),
    ],
)
def test_options_that_would_not_be_honoured_are_refused(form: str, options: dict[str, str]) -> None:
    with pytest.raises(InvalidSpec, match=r"spec\.source"):
        checked(form, options)


def test_a_source_elsewhere_has_options_of_its_own() -> None:
    options = {"endpoint": "http://127.0.0.1:9"}
    assert storage_options("s3://other/x", "s3://bucket/t", options) == options
    assert storage_options("s3a://other/x", "s3://bucket/t", options) == options
    assert storage_options("file:///x", "s3://bucket/t", options) == {}


def test_a_type_that_no_table_has_is_named() -> None:
    with pytest.raises(InvalidSpec, match="duration"):
        schema_string(pa.schema([("took", pa.duration("s"))]))
    with pytest.raises(InvalidSpec, match="twice"):
        schema_string(pa.schema([("a", pa.int8()), ("A", pa.int8())]))


@pytest.mark.parametrize(
    ("found", "type_"),
    [
        (pa.string_view(), "string"),
        (pa.binary_view(), "binary"),
        (pa.list_(pa.int64(), 3), "array"),
        (pa.list_view(pa.string_view()), "array"),
        (pa.large_list_view(pa.int64()), "array"),
    ],
)
def test_layouts_of_arrow_are_no_types_of_their_own(found: pa.DataType, type_: str) -> None:
    """deltalake writes views, as Polars does arrays of one length."""
    [field] = json.loads(schema_string(pa.schema([("a", found)])))["fields"]
    assert (field["type"] if isinstance(field["type"], str) else field["type"]["type"]) == type_
