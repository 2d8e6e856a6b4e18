"""`tandem index` and `tandem scan --where` of a LakeTable that names its server: it is asked, and
wherever it fails the rows are the same."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pytest
import typer
from deltalake import write_deltalake

from cli.invoke import Tandem
from tandem.cli.app import local_folder
from tandem.delta.log.delta_log import DeltaLog
from tandem.index import open_index
from tandem.index.server.access import SharedToken
from tandem.index.server.calls import Answer, AnswerFiles
from tandem.index.server.client import ENDPOINT_VARIABLE, FOLDER_VARIABLE
from tandem.index.server.service import IndexService
from tandem.index.server.transport import FlightServer
from tandem.mergelog.log_table import LogSettings, MergeLog, ensure_log
from tandem.storage import open_store

TOKEN = "a token that callers present"
QUESTIONS = (
    ("index", "count", "visits"),
    ("index", "count", "visits", "--where", "id < 2"),
    ("index", "count", "visits", "--version", "1", "--where", "name IS NULL"),
    ("index", "bounds", "visits", "--columns", "id,name", "--where", "id > 3"),
    ("index", "splits", "visits", "--where", "id < 4"),
    ("scan", "visits", "--where", "id IN (2, 5, 7)", "--columns", "NAME,id"),
    ("scan", "visits", "--where", "name = 'a'", "--version", "1"),
)


class Noted(IndexService):
    """A service that notes what it is asked."""

    def __init__(self, root: Path, name: str = "visits") -> None:
        super().__init__({name: lambda: open_index(str(root))}, AnswerFiles(None))
        self.asked: list[str] = []

    def ask(self, call: str, body: bytes, caller: str = "") -> Answer:
        self.asked.append(call)
        return super().ask(call, body, caller)


@pytest.fixture
def lake(table: Path, tmp_path: Path) -> Path:
    """The LakeTable of a table, as a file."""
    file = tmp_path / "lake.yaml"
    file.write_text(
        "apiVersion: tandem.dev/v1alpha1\nkind: LakeTable\nmetadata: {name: visits}\n"
        f"spec:\n  location: {table.as_uri()}\n  index: {{server: lake}}\n"
    )
    return file


@contextmanager
def served(service: IndexService, patch: pytest.MonkeyPatch, folder: Path) -> Iterator[str]:
    folder.mkdir(exist_ok=True)
    (folder / "token").write_text(TOKEN)
    patch.setenv(FOLDER_VARIABLE, str(folder))
    with FlightServer(service, "127.0.0.1", 0, access=SharedToken(TOKEN)) as server:
        endpoint = f"grpc://127.0.0.1:{server.port}"
        patch.setenv(ENDPOINT_VARIABLE, endpoint)
        yield endpoint


def answers(tandem: Tandem, lake: Path) -> list[object]:
    """What all questions print, by a server or without one."""
    found: list[object] = []
    for words in QUESTIONS:
        result = tandem(*words, "-f", lake, "-o", "json")
        assert result.exit_code == 0, result.stderr
        if words[0] == "scan":
            rows = [json.loads(line) for line in result.stdout.splitlines()]
            found.append(sorted(rows, key=lambda row: int(row["id"])))
        else:
            found.append(json.loads(result.stdout))
    return found


@pytest.fixture
def expected(tandem: Tandem, lake: Path) -> list[object]:
    """What they print without a server."""
    text = lake.read_text()
    lake.write_text(text.replace("  index: {server: lake}\n", ""))
    found = answers(tandem, lake)
    lake.write_text(text)
    assert [len(each) for each in found if isinstance(each, list)] == [3, 2]
    return found


def test_the_server_of_a_lake_table_is_asked(
    tandem: Tandem, lake: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    expected: list[object],
) -> None:  # fmt: skip
    service = Noted(table)
    with served(service, monkeypatch, tmp_path / "access"):
        assert answers(tandem, lake) == expected
        assert service.asked == [
            "GetCount", "GetCount", "GetCount", "GetBounds", "GetSplits", "GetSplits", "GetSplits",
        ]  # fmt: skip
        shown = tandem("index", "splits", "visits", "-f", lake, "--where", "id < 4")
        assert "\n2 files, as of version 3" in "\n" + shown.stderr
        # What the log says is not asked of a server.
        asked = len(service.asked)
        assert tandem("index", "show", "visits", "-f", lake).exit_code == 0
        assert tandem("index", "verify", "visits", "-f", lake).exit_code == 0
        assert len(service.asked) == asked


def test_a_server_that_is_away_is_named_and_the_rows_are_the_same(
    tandem: Tandem, lake: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    expected: list[object],
) -> None:  # fmt: skip
    with served(Noted(table), monkeypatch, tmp_path / "access") as endpoint:
        pass
    assert answers(tandem, lake) == expected
    for words in QUESTIONS:
        warning = tandem(*words, "-f", lake, "-o", "json").stderr
        assert "server=lake" in warning
        assert endpoint in warning
        assert "this process answers" in warning


def test_whom_the_server_refuses_reads_with_own_rights(
    tandem: Tandem, lake: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    expected: list[object],
) -> None:  # fmt: skip
    service = Noted(table)
    with served(service, monkeypatch, tmp_path / "access"):
        (tmp_path / "access" / "token").write_text("another token of callers")
        assert answers(tandem, lake) == expected
        assert service.asked == []


def test_a_table_that_the_server_does_not_serve_yet_is_read_all_the_same(
    tandem: Tandem, lake: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    expected: list[object],
) -> None:  # fmt: skip
    with served(Noted(table, "another"), monkeypatch, tmp_path / "access"):
        assert answers(tandem, lake) == expected
        result = tandem("index", "count", "visits", "-f", lake)
        assert "does not serve such a table" in result.stderr


def test_a_table_that_the_server_cannot_open_is_read_all_the_same(
    tandem: Tandem, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    expected: list[object],
) -> None:  # fmt: skip
    with served(Noted(tmp_path / "nothing"), monkeypatch, tmp_path / "access"):
        assert answers(tandem, lake) == expected


def test_a_server_with_another_table_of_this_name_is_not_believed(
    tandem: Tandem, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    expected: list[object],
) -> None:  # fmt: skip
    """The resource was changed here, and not in the cluster."""
    other = tmp_path / "other"
    for _ in range(4):
        write_deltalake(other, pa.table({"id": [2], "name": ["of another"]}), mode="append")
    with served(Noted(other), monkeypatch, tmp_path / "access"):
        assert answers(tandem, lake) == expected
        assert "another table under this name" in tandem(*QUESTIONS[0], "-f", lake).stderr


def test_outside_of_a_cluster_the_server_that_is_not_asked_is_named(
    tandem: Tandem, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ENDPOINT_VARIABLE, raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    result = tandem("index", "count", "visits", "-f", lake)
    assert result.stdout == "8\n"
    assert "server=lake" in result.stderr
    assert ENDPOINT_VARIABLE in result.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["index", "count", "visits", "--where", "idd = 1"], "perhaps id"),
        (["index", "bounds", "visits", "--columns", "idd"], "perhaps id"),
        (["index", "count", "visits", "--segments", "7.1"], "no such segment"),
        (["index", "splits", "visits", "--version", "9"], "no version 9"),
        (["scan", "visits", "--where", "id +", "-o", "json"], "line 1"),
        (["scan", "visits", "--where", "id = 1", "--columns", "idd", "-o", "json"], "perhaps id"),
    ],
)
def test_wrong_questions_end_as_without_a_server(
    tandem: Tandem, lake: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    words: list[str], message: str,
) -> None:  # fmt: skip
    with served(Noted(table), monkeypatch, tmp_path / "access"):
        result = tandem(*words, "-f", lake)
    assert result.exit_code != 0
    assert message in result.stderr
    assert result.stdout == ""


def test_a_condition_that_no_server_takes_is_refused_here(
    tandem: Tandem, lake: Path, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Noted(table)
    with served(service, monkeypatch, tmp_path / "access"):
        where = " OR ".join(["id = 1"] * 20_000)
        result = tandem("index", "count", "visits", "-f", lake, "--where", where)
    assert result.exit_code == 2
    assert "the expression is too long" in result.stderr
    assert service.asked == []
    assert len(result.stderr) < 2_000


def test_a_merge_on_read_table_is_not_asked_about(
    tandem: Tandem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its log is merged into what is read, and the server does not see that."""
    root, file = tmp_path / "orders", tmp_path / "lake.yaml"
    rows = pa.table({"id": [1, 2, 3]})
    write_deltalake(root, rows, configuration={"delta.enableDeletionVectors": "true"})
    log = MergeLog(DeltaLog(open_store(root.as_uri())))
    file.write_text(
        "apiVersion: tandem.dev/v1alpha1\nkind: LakeTable\nmetadata: {name: visits}\n"
        f"spec:\n  location: {root.as_uri()}\n  index: {{server: lake}}\n"
    )
    service = Noted(root)
    service.ask("Load", b'{"table": "visits"}')
    ensure_log(log, LogSettings(("id",)), now_ms=0, nonce="n")
    with served(service, monkeypatch, tmp_path / "access"):
        service.asked.clear()
        result = tandem("scan", "visits", "-f", file, "--where", "id < 3", "--base", "-o", "json")
        assert len(result.stdout.splitlines()) == 2, result.stderr
        refused = tandem("index", "count", "visits", "-f", file)
        assert "merge-on-read" in refused.stderr
        assert refused.exit_code != 0
    assert service.asked == []


def test_the_folder_of_answers_may_be_a_url_and_lies_on_this_machine() -> None:
    for text, folder in (
        ("/tmp/a b", "/tmp/a b"),
        ("answers", "answers"),
        ("C:answers", "C:answers"),
        ("file:///tmp/a%20b", "/tmp/a b"),
        ("file:/tmp/x", "/tmp/x"),
        ("file://localhost/tmp/x", "/tmp/x"),
    ):
        assert local_folder(text) == Path(folder)
    for text in ("s3://lake/answers", "file://host/tmp/x", "https://host/x"):
        with pytest.raises(typer.BadParameter, match="no folder of this machine"):
            local_folder(text)


def test_an_answers_folder_elsewhere_is_refused_before_anything_is_served(
    tandem: Tandem, lake: Path
) -> None:
    result = tandem("index", "serve", f"visits={lake}", "--answers", "s3://lake/answers")
    assert result.exit_code == 2
    assert "no folder of this machine" in result.stderr
