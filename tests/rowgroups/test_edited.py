"""Edits of files of every writer: each reader finds the rows that decoding all would give."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from rowgroups.editing import Edit, assert_true_bounds, editor, make, read, shown, wanted
from rowgroups.test_joined import READERS, plain
from rowgroups.writers import SCHEMA, TABLE, WRITERS, rows

EDITS = {
    "nothing": Edit(),
    "a row group dropped": Edit(frozenset(range(700))),
    "rows dropped": Edit(frozenset({0, 700, 701, 1_499})),
    "one column": Edit(values={n: row for n, row in enumerate(rows(2).to_pylist()) if n % 97 == 3},
                       columns=frozenset({"s"})),
    "floats": Edit(values={n: row for n, row in enumerate(rows(3).to_pylist()) if n > 1_300},
                   columns=frozenset({"f", "t"})),
    "whole rows": Edit(values={5: rows(2).to_pylist()[1], 1_450: rows(2).to_pylist()[2]}),
    "rows dropped and replaced": Edit(
        frozenset(range(600)),
        {n: row for n, row in enumerate(rows(4).to_pylist()) if n % 300 == 1},
        frozenset({"id", "small", "d"}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
@pytest.mark.parametrize("writer", WRITERS)
def test_every_reader_finds_the_rows(writer: str, edit: Edit, tmp_path: Path) -> None:
    path = tmp_path / "source.parquet"
    WRITERS[writer](path, rows(1))
    found = make(editor(path, TABLE), TABLE, edit)
    made = tmp_path / found.file.path
    expected = wanted(rows(1).to_pylist(), TABLE, edit)
    assert found.whole is None
    assert found.file.rows == len(expected)
    assert found.file.size == made.stat().st_size
    assert shown(read(made, TABLE)) == shown(expected)
    assert_true_bounds(made, found.file.stats, expected, TABLE)
    for name, by in READERS.items():
        assert plain(by(made)) == plain(pa.Table.from_pylist(expected, SCHEMA)), name
