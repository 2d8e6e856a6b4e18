"""`tandem scan`: the same rows as `deltalake` reads, in three forms."""

from __future__ import annotations

import datetime
import decimal
import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from cli.invoke import Tandem
from support.some import some
from tandem.cli.commands.scan import first_rows
from tandem.cli.output import json_value
from tandem.delta.log.delta_log import DeltaLog
from tandem.mergelog.log_table import LogSettings, MergeLog, ensure_log
from tandem.mergelog.writer import LogWriter
from tandem.storage import open_store


def rows_of(table: Path, version: int | None = None) -> list[dict[str, object]]:
    rows = pa.table(DeltaTable(str(table), version=version).scan()).to_pylist()
    return sorted(rows, key=lambda row: row["id"])


def scan(table: Path, *words: str) -> list[str]:
    """The command for a process of its own: it has a JVM, and binary output."""
    return [sys.executable, "-m", "tandem.cli.main", "scan", str(table), *words]


def lines(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_json_is_one_object_a_line(tandem: Tandem, table: Path) -> None:
    found = lines(tandem("scan", table, "-o", "json").stdout)
    assert sorted(found, key=lambda row: str(row["id"])) == rows_of(table)


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_any_version(tandem: Tandem, table: Path, version: int) -> None:
    found = lines(tandem("scan", table, "--version", str(version), "-o", "json").stdout)
    assert sorted(found, key=lambda row: str(row["id"])) == rows_of(table, version)


def test_arrow_is_a_stream(table: Path) -> None:
    found = subprocess.run(
        scan(table, "-o", "arrow"),
        capture_output=True,
        timeout=60,
        check=True,
    )
    rows = pa.ipc.open_stream(found.stdout).read_all()
    assert sorted(rows.to_pylist(), key=lambda row: row["id"]) == rows_of(table)


def test_columns_in_the_order_asked_for(tandem: Tandem, table: Path) -> None:
    found = lines(tandem("scan", table, "--columns", "name,id", "-o", "json").stdout)
    assert list(found[0]) == ["name", "id"]


def test_columns_in_backquotes(tandem: Tandem, tmp_path: Path) -> None:
    write_deltalake(str(tmp_path / "t"), pa.table({"a,b": [1], "c`": [2], "d.e": [3]}))
    chosen = "`a,b`,d.e,`c```"
    found = tandem("scan", tmp_path / "t", "--columns", chosen, "-o", "json").stdout
    assert lines(found) == [{"a,b": 1, "d.e": 3, "c`": 2}]


def test_a_column_that_is_not_there(tandem: Tandem, table: Path) -> None:
    result = tandem("scan", table, "--columns", "id,nam")
    assert result.exit_code == 2
    assert f"{table.as_uri()}, columns: the table has no such column" in result.stderr
    assert "expected: perhaps name" in result.stderr
    assert result.stdout == ""


def test_a_preview_is_short_and_marked_as_truncated(tandem: Tandem, tmp_path: Path) -> None:
    folder = tmp_path / "long"
    write_deltalake(str(folder), pa.table({"id": list(range(50))}))
    result = tandem("scan", folder)
    assert len([line for line in result.stdout.splitlines() if line.strip().isdigit()]) == 20
    assert "first 20 rows" in result.stderr
    assert len(lines(tandem("scan", folder, "-o", "json", "--limit", "7").stdout)) == 7
    assert len(lines(tandem("scan", folder, "-o", "json").stdout)) == 50


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    folder = tmp_path / "long"
    write_deltalake(str(folder), pa.table({"id": list(range(200_000))}))
    command = f"{sys.executable} -m tandem.cli.main scan {folder} -o json | head -n 1"
    found = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=60, check=False
    )
    assert found.stdout == '{"id":0}\n'
    assert found.stderr == ""


def test_values_that_json_cannot_represent() -> None:
    assert json_value(
        {
            "nan": float("nan"),
            "inf": float("-inf"),
            "decimal": decimal.Decimal("1E+2"),
            "bytes": b"\x00\xff",
            "day": datetime.date(2013, 1, 1),
            "nested": [{"x": None}],
        }
    ) == {
        "nan": "NaN",
        "inf": "-Infinity",
        "decimal": "100",
        "bytes": "AP8=",
        "day": "2013-01-01",
        "nested": [{"x": None}],
    }


@given(st.lists(st.integers(0, 4), max_size=8), st.integers(0, 20))
def test_first_rows_takes_no_more_and_no_less(sizes: list[int], count: int) -> None:
    batches = [pa.record_batch({"x": [1] * size}) for size in sizes]
    assert sum(b.num_rows for b in first_rows(batches, count)) == min(sum(sizes), count)


@pytest.mark.parametrize(
    ("where", "expected"),
    some([("ID > 1 AND name IS NOT NULL", [3, 6, 7]), ("name <=> NULL", [2, 5, 8])]),
)
def test_where_is_decided_by_spark(table: Path, where: str, expected: list[int]) -> None:
    found = subprocess.run(
        scan(table, "--where", where, "--columns", "id", "-o", "json"),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert sorted(row["id"] for row in lines(found.stdout)) == expected  # type: ignore[type-var]
    assert found.stderr == "", "nothing of the JVM's own greeting"


@pytest.mark.parametrize(
    "where", ["nme = 'a'", "id", "reflect('java.lang.System', 'exit')", "id IN (SELECT 1)", "1 ="]
)
def test_a_condition_that_is_not_accepted_is_refused_before_anything_is_read(
    tandem: Tandem, table: Path, where: str
) -> None:
    result = tandem("scan", table, "--where", where, "-o", "json")
    assert result.exit_code == 2
    assert "InvalidStatement" in result.stderr
    assert result.stdout == ""


@pytest.mark.matrix
def test_a_condition_that_fails_on_a_row_is_an_error_of_one_line(table: Path) -> None:
    found = subprocess.run(
        scan(table, "--where", "1 / (id - 3) > 0", "-o", "json"),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert found.returncode == 1
    assert found.stdout == ""
    assert "StatementFailed" in found.stderr
    assert "DIVIDE_BY_ZERO" in found.stderr
    assert "Traceback" not in found.stderr


def test_a_preview_distinguishes_nulls_from_empty_strings(tandem: Tandem, tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2], "name": pa.array(["", None]), "none": pa.array(["", ""])})
    write_deltalake(str(tmp_path / "t"), rows)
    head, _rule, *cells = tandem("scan", tmp_path / "t").stdout.strip().splitlines()
    assert head.split() == ["id", "name", "none"]
    assert [line.split() for line in cells] == [["1"], ["2", "null"]]


def test_the_merged_view_of_a_merge_on_read_table(tandem: Tandem, tmp_path: Path) -> None:
    path = tmp_path / "t"
    rows = pa.table({"id": [1, 2, 3], "v": ["a", "b", "c"]})
    write_deltalake(str(path), rows, configuration={"delta.enableDeletionVectors": "true"})
    log = MergeLog(DeltaLog(open_store(str(path))))
    ensure_log(log, LogSettings(("id",)), now_ms=0, nonce="made once")
    with LogWriter(log, "orders") as writer:
        upserts = pa.table({"id": [2, 4], "v": ["B", "D"]})
        writer.append(upserts, pa.table({"id": [1]}), batch=0)
    merged = lines(tandem("scan", path, "-o", "json").stdout)
    assert sorted((row["id"], row["v"]) for row in merged) == [(2, "B"), (3, "c"), (4, "D")]
    base = lines(tandem("scan", path, "--base", "-o", "json").stdout)
    assert [row["v"] for row in base] == ["a", "b", "c"]
    # In a process of its own: Spark ends with it.
    filtered = subprocess.run(
        scan(path, "--where", "v = 'B'", "-o", "json"),
        capture_output=True,
        timeout=120,
        check=True,
        text=True,
    )
    assert lines(filtered.stdout) == [{"id": 2, "v": "B"}]


def test_a_preview_shows_nested_values_and_booleans_as_json(tandem: Tandem, tmp_path: Path) -> None:
    rows = pa.table({"b": [True, None], "s": [{"x": 1, "y": [None, "é"]}, None], "t": ["", "True"]})
    write_deltalake(tmp_path / "t", rows)
    shown = [line.split() for line in tandem("scan", tmp_path / "t").stdout.splitlines()]
    assert ["true", '{"x":', "1,", '"y":', "[null,", '"é"]}'] in shown
    assert ["null", "null", "True"] in shown
