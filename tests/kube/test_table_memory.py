"""How much memory one table may take by default, and as an option."""

from __future__ import annotations

from pathlib import Path

import pytest

from tandem.cli.commands.operator import table_memory_of
from tandem.errors import InvalidSpec
from tandem.kube.children.start import default_table_memory

GIB = 2**30


def limited(root: Path, name: str, text: str) -> Path:
    path = root / "sys/fs/cgroup" / name
    path.parent.mkdir(parents=True)
    path.write_text(text)
    return root


@pytest.mark.parametrize("name", ["memory.max", "memory/memory.limit_in_bytes"])
def test_half_of_a_pods_memory_is_for_one_table(tmp_path: Path, name: str) -> None:
    root = limited(tmp_path, name, f"{GIB}\n")
    assert default_table_memory(root, 64 * GIB) == GIB // 2


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("memory.max", "max\n"),
        ("memory.max", ""),
        ("memory/memory.limit_in_bytes", f"{2**63 - 4096}\n"),
    ],
)
def test_without_a_limit_it_is_a_quarter_of_the_machine(
    tmp_path: Path, name: str, text: str
) -> None:
    assert default_table_memory(limited(tmp_path, name, text), 64 * GIB) == 16 * GIB
    assert default_table_memory(tmp_path / "without", 64 * GIB) == 16 * GIB


def test_the_option_is_a_size() -> None:
    assert table_memory_of("512Mi") == GIB // 2
    assert table_memory_of("2G") == 2 * 10**9
    assert table_memory_of("") == default_table_memory()


@pytest.mark.parametrize("text", ["much", "-1", "0", "1000", "1Xi", "1e99999999"])
def test_a_size_that_is_none_or_too_small_is_refused(text: str) -> None:
    with pytest.raises(InvalidSpec, match="--table-memory"):
        table_memory_of(text)
