"""Commands on a table of Unity Catalog that the catalog manages: what docs/catalogs.md shows, and
what is refused."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import Result

from cli.invoke import Tandem
from support.lake.unity import TOKEN, ManagedTable, start_server
from support.lake.unity_proxy import FaultOnce, Refusal, proxy_before

PAGE = Path(__file__).resolve().parents[2] / "docs" / "catalogs.md"
SHOWN = "unity://unity.example.com/main.sales.orders"


@pytest.fixture(scope="module")
def managed() -> Iterator[ManagedTable]:
    with start_server() as server:
        yield server.create_table()


@pytest.fixture
def url(managed: ManagedTable, monkeypatch: pytest.MonkeyPatch) -> str:
    """As one types it, with the token in the environment."""
    monkeypatch.setenv("TANDEM_UNITY_TOKEN", TOKEN)
    return f"{managed.server.url.replace('http://', 'unity+http://')}/{managed.full_name}"


def said(done: Result) -> str:
    """On one line, however wide the terminal is."""
    return " ".join((done.stdout + done.stderr).split())


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table({"id": [6, 7, 8], "v": ["a", "b", "c"]}), file)
    return file


def test_the_commands_of_the_page(
    tandem: Tandem, url: str, rows: Path, managed: ManagedTable
) -> None:
    done = tandem("ingest", url, "--from", rows)
    assert done.exit_code == 0, done.stderr
    shown = re.findall(r"^\$ tandem (.*)$", PAGE.read_text(), re.MULTILINE)
    assert len(shown) == 3
    for line in shown:
        assert SHOWN in line
        done = tandem(*shlex.split(line.replace(SHOWN, url)))
        assert done.exit_code == 0, done.stderr
        assert TOKEN not in said(done)
    assert managed.state()["latest-table-version"] == 2


def test_a_file_of_resources(tandem: Tandem, url: str, tmp_path: Path) -> None:
    done = tandem("update", url, "--where", "id = 8", "--set", "v = 'd'", "-o", "yaml")
    file = tmp_path / "update.yaml"
    file.write_text(done.stdout)
    done = tandem("run", "-f", file)
    assert done.exit_code == 0, done.stderr
    assert "1 updated" in said(done)


def test_by_its_location_it_is_refused_with_what_to_type(
    tandem: Tandem, url: str, managed: ManagedTable, tmp_path: Path
) -> None:
    """As a table, as a source, and for an index."""
    for words in (
        ("table", "show", managed.folder),
        ("delete", managed.folder, "--where", "id = 1"),
        ("clean", managed.folder),
        ("scan", managed.folder),
        ("index", "count", managed.folder),
        ("ingest", url, "--from", managed.folder, "--format", "Delta"),
    ):
        done = tandem(*words)
        assert done.exit_code != 0, words
        assert "unity://HOST/CATALOG.SCHEMA.TABLE" in said(done), words


@pytest.mark.parametrize(
    ("word", "permission"), [("compact", "DATA_REORGANIZATION"), ("clean", "DATA_CLEANUP")]
)
def test_maintenance_that_the_catalog_does_not_permit(
    tandem: Tandem, url: str, rows: Path, word: str, permission: str
) -> None:
    assert tandem("ingest", url, "--from", rows).exit_code == 0
    done = tandem(word, url)
    assert done.exit_code == 1
    assert "CatalogForbids" in said(done)
    assert f"permits no {permission}" in said(done)


def test_properties_are_not_changed_past_the_catalog(
    tandem: Tandem, managed: ManagedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TANDEM_UNITY_TOKEN", TOKEN)
    plain = managed.server.create_table(properties={"delta.enableDeletionVectors": "false"})
    url = f"{managed.server.url.replace('http://', 'unity+http://')}/{plain.full_name}"
    done = tandem("delete", url, "--where", "id = 1", "--enable-deletion-vectors")
    assert done.exit_code == 1
    assert "this commit cannot be made through the catalog" in said(done)
    assert plain.state()["latest-table-version"] == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("table", "show", "{tls}"), "A server without TLS is named with http://"),
        (("table", "show", "{url}?version=1"), "has no query and no fragment"),
        (("table", "show", "main.sales.orders"), "unity://HOST/CATALOG.SCHEMA.TABLE"),
        (
            ("ingest", "{url}", "--from", "{url}", "--format", "delta"),
            "a source cannot be named by its catalog",
        ),
    ],
)
def test_names_that_are_refused_say_what_to_type(
    tandem: Tandem, url: str, words: tuple[str, ...], expected: str
) -> None:
    tls = url.replace("unity+http", "unity")
    done = tandem(*(word.format(url=url, tls=tls) for word in words))
    assert done.exit_code != 0
    assert expected in said(done)


@pytest.mark.parametrize(
    ("token", "expected"), [("", "and there is none"), ("worn", "does not take the token")]
)
def test_a_token_that_the_catalog_does_not_take(
    tandem: Tandem,
    managed: ManagedTable,
    monkeypatch: pytest.MonkeyPatch,
    token: str,
    expected: str,
) -> None:
    monkeypatch.setenv("TANDEM_UNITY_TOKEN", token)
    with proxy_before(managed.server.url) as proxy:
        proxy.fault = FaultOnce("LOAD", Refusal(401, "NotAuthorizedException"))
        address = proxy.url.replace("http://", "unity+http://")
        done = tandem("table", "show", f"{address}/{managed.full_name}")
    assert done.exit_code == 1
    assert expected in said(done)
    assert "Set TANDEM_UNITY_TOKEN" in said(done)


def test_a_catalog_that_does_not_know_the_table(tandem: Tandem, url: str) -> None:
    done = tandem("table", "show", f"{url}-not")
    assert done.exit_code == 1
    assert "TableNotFound" in said(done)
