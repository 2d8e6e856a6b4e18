"""`tandem index`: numbers by the log, and the commands of its page."""

from __future__ import annotations

import datetime as dt
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from cli.invoke import Tandem
from tandem.delta.log.delta_log import DeltaLog
from tandem.index import Query
from tandem.index.server.client import RemoteIndex
from tandem.index.server.transport import Connection
from tandem.mergelog.log_table import LogSettings, MergeLog, ensure_log
from tandem.storage import open_store

ROOT = Path(__file__).resolve().parents[2]


def found(tandem: Tandem, *words: str | Path) -> dict[str, object]:
    result = tandem("index", *words, "-o", "json")
    assert result.exit_code == 0, result.stderr
    answer: dict[str, object] = json.loads(result.stdout)
    return answer


@pytest.mark.parametrize(
    ("where", "rows", "read"),
    [("", 8, 0), ("id < 3", 3, 0), ("id < 2", 2, 1), ("name = 'a'", 3, 3), ("id > 99", 0, 0)],
)
def test_count(tandem: Tandem, table: Path, where: str, rows: int, read: int) -> None:
    words = ["--where", where] if where else []
    assert found(tandem, "count", table, *words) == {"version": 3, "rows": rows, "filesRead": read}


def test_count_is_a_plain_number(tandem: Tandem, table: Path) -> None:
    result = tandem("index", "count", table)
    assert result.stdout == "8\n"
    assert result.stderr == "Rows of version 3, by the log alone\n"


def test_counts_of_other_versions(tandem: Tandem, table: Path) -> None:
    assert [found(tandem, "count", table, "--version", str(n))["rows"] for n in range(4)] == [
        3, 6, 9, 8,
    ]  # fmt: skip
    # Without in-commit timestamps, the time of a version is that of its file.
    for version in range(4):
        commit = table / "_delta_log" / f"{version:020}.json"
        moment = dt.datetime.fromtimestamp(commit.stat().st_mtime + 0.001, dt.UTC).isoformat()
        assert found(tandem, "count", table, "--timestamp", moment)["version"] == version


def test_bounds(tandem: Tandem, table: Path) -> None:
    answer = found(tandem, "bounds", table, "--columns", "id,name", "--where", "id > 3")
    assert answer["columns"] == [
        {"column": "id", "least": 5, "greatest": 8},
        {"column": "name", "least": "a", "greatest": "b"},
    ]


def test_splits_say_whether_the_filter_still_applies(tandem: Tandem, table: Path) -> None:
    answer = found(tandem, "splits", table, "--where", "id < 4")
    splits = answer["splits"]
    assert isinstance(splits, list)
    assert sorted((each["rows"], each["filter"]) for each in splits) == [(2, True), (3, False)]
    shown = tandem("index", "splits", table, "--where", "id < 4")
    assert "2 of 3 files, as of version 3" in shown.stderr


def test_show_and_verify(tandem: Tandem, table: Path) -> None:
    facts = found(tandem, "show", table)
    assert (facts["files"], facts["rows"], facts["filesWithoutRowCount"]) == (3, 8, 0)
    assert facts["columns"] == [
        {"column": "id", "filesWithBounds": 3},
        {"column": "name", "filesWithBounds": 3},
    ]
    assert "8" in tandem("index", "show", table).stdout
    assert found(tandem, "verify", table) == {"version": 3, "files": 3, "differences": []}


def test_verify_lists_what_the_log_says_wrongly(tandem: Tandem, table: Path) -> None:
    """Statistics that lie, as a broken writer makes them."""
    commit = table / "_delta_log" / f"{0:020d}.json"
    text = commit.read_text()
    lied = text.replace('\\"numRecords\\":3', '\\"numRecords\\":4')
    # The order of columns differs from run to run.
    lied = re.sub(r'(maxValues\\":\{[^}]*\\"id\\":)2', r"\g<1>1", lied)
    assert '\\"id\\":1' in lied
    commit.write_text(lied)
    result = tandem("index", "verify", table, "-o", "json", "--version", "0")
    assert result.exit_code == 1
    differences = json.loads(result.stdout)["differences"]
    assert {(d["field"], d["log"], d["rows"]) for d in differences} == {
        ("numRecords", 4, 3), ("maxValues.id", 1, 2),
    }  # fmt: skip
    assert "2 differences" in tandem("index", "verify", table, "--version", "0").stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["count", "--version", "9"], "no version 9"),
        (["count", "--segments", "7.1"], "no such segment"),
        (["count", "--version", "1", "--timestamp", "2026"], "cannot be combined"),
        (["count", "--timestamp", "soon"], "not a date or a time"),
        (["count", "--where", "idd = 1"], "perhaps id"),
        (["bounds", "--columns", "idd"], "perhaps id"),
        (["splits", "--where", "id +"], "line 1"),
    ],
)
def test_wrong_questions_end_with_2(
    tandem: Tandem, table: Path, words: list[str], message: str
) -> None:
    result = tandem("index", words[0], table, *words[1:])
    assert result.exit_code == 2 or "VersionNotFound" in result.stderr
    assert message in result.stderr
    assert result.stdout == ""


def test_a_merge_on_read_table_is_refused_without_base(tandem: Tandem, tmp_path: Path) -> None:
    root = tmp_path / "orders"
    rows = pa.table({"id": [1, 2, 3]})
    write_deltalake(root, rows, configuration={"delta.enableDeletionVectors": "true"})
    log = MergeLog(DeltaLog(open_store(root.as_uri())))
    ensure_log(log, LogSettings(("id",)), now_ms=0, nonce="n")
    result = tandem("index", "count", root)
    assert result.exit_code != 0
    assert "merge-on-read" in result.stderr
    assert "--base" in result.stderr
    assert found(tandem, "count", root, "--base")["rows"] == 3


def test_the_page_shows_what_the_commands_print(tandem: Tandem, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "index.md").read_text()
    folder = tmp_path / "orders"
    recipes = subprocess.run(
        [sys.executable, ROOT / "examples" / "index" / "recipes.py", folder],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    console = re.findall(r"```console\n(.*?)```", page, re.DOTALL)[0]
    shown = re.split(r"^\$ .venv/bin/(.+)\n", console, flags=re.MULTILINE)[1:]
    printed = dict(zip(shown[::2], shown[1::2], strict=True))
    for command, expected in printed.items():
        if command.startswith("python"):
            assert recipes.stdout == expected
            continue
        words = [word.strip("'") for word in re.findall(r"'[^']*'|\S+", command)[1:]]
        result = tandem(*(str(folder) if word == "/tmp/orders" else word for word in words))
        lines = (result.stdout + result.stderr).splitlines()
        assert [line.rstrip() for line in lines if line.strip()] == [
            line for line in expected.splitlines() if line.strip()
        ]


def test_serve_answers_until_it_is_stopped(table: Path, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("0123456789abcdef\n")
    command = [sys.executable, "-m", "tandem.cli.main", "index", "serve", f"visits={table}"]
    command += ["--listen", "127.0.0.1:0", "--token-file", str(token)]
    quiet = {**os.environ, "NO_COLOR": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=quiet) as process:
        try:
            assert process.stderr is not None
            line = process.stderr.readline()
            endpoint = re.search(r"grpc://\S+", line)
            assert endpoint is not None, line
            connection = Connection(endpoint[0], token="0123456789abcdef")
            remote = RemoteIndex(connection, "visits", open_store(table.as_uri()))
            assert remote.count(Query("id < 4")) == 4
            process.send_signal(signal.SIGTERM)
            assert process.wait(100) == 0
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--listen", "0.0.0.0:0"], "beyond loopback"),
        (["--listen", "[::]:0"], "beyond loopback"),
        (["--listen", "8815"], "HOST:PORT"),
        (["--listen", "127.0.0.1:99999"], "HOST:PORT"),
        (["--token-file", "/nowhere"], "cannot be read"),
        (["--tls-cert", "/nowhere"], "belong together"),
    ],
)
def test_serve_refuses_what_would_not_be_safe(
    tandem: Tandem, table: Path, words: list[str], message: str
) -> None:
    result = tandem("index", "serve", f"visits={table}", *words)
    assert result.exit_code == 2
    assert message in result.stderr
