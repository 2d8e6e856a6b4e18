"""Compressed sources: whole ones are read, damaged ones are named."""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Callable

import pyarrow as pa
import pytest

from support.lake.memory_store import MemoryStore
from tandem.errors import SourceUnreadable
from tandem.spark.sources.text_files import read_text

TEXT = b"".join(b"line %d\n" % number for number in range(20_000))


def zstd(data: bytes) -> bytes:
    out = pa.BufferOutputStream()
    with pa.CompressedOutputStream(out, "zstd") as packed:
        packed.write(data)
    return bytes(out.getvalue().to_pybytes())


PACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": zstd,
}
PACKS = [pytest.param(suffix, pack, id=suffix) for suffix, pack in PACK.items()]


def read(name: str, data: bytes) -> bytes:
    store = MemoryStore()
    store.put(name, data)
    return "".join(read_text(store, name, "utf-8")).encode()


@pytest.mark.parametrize(("suffix", "pack"), PACKS)
def test_whole_files_are_read_several_streams_too(
    suffix: str, pack: Callable[[bytes], bytes]
) -> None:
    assert read(f"f{suffix}", pack(TEXT)) == TEXT
    assert read(f"f{suffix}", pack(TEXT) + pack(b"") + pack(b"more\n")) == TEXT + b"more\n"


@pytest.mark.parametrize(("suffix", "pack"), PACKS)
@pytest.mark.parametrize(
    "damage",
    [
        lambda _: b"",
        lambda data: data[:3],
        lambda data: data[: len(data) // 2],
        lambda data: data[:-3],
        lambda data: data + b"more",
        lambda _: b"plain text\n",
    ],
    ids=["empty", "begin", "half", "end", "more", "plain"],
)
def test_damaged_files_are_named(
    suffix: str, pack: Callable[[bytes], bytes], damage: Callable[[bytes], bytes]
) -> None:
    with pytest.raises(SourceUnreadable, match=rf"day{suffix}: .*damaged or truncated"):
        read(f"day{suffix}", damage(pack(TEXT)))


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, zstd, lambda _: b"PAR1..."])
def test_a_name_that_misstates_the_format_of_a_file_is_reported(
    pack: Callable[[bytes], bytes],
) -> None:
    with pytest.raises(SourceUnreadable, match=r"f\.csv: .*not match its name"):
        read("f.csv", pack(TEXT))
