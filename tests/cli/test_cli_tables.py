"""`tandem table`, `history`, `locks` and `clean` on a table that `deltalake` wrote."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from cli.invoke import Tandem


def test_segments_lists_foreign_files_in_order(tandem: Tandem, table: Path) -> None:
    found = json.loads(tandem("table", "segments", table, "-o", "json").stdout)
    assert [segment["name"][:2] for segment in found] == ["f-"] * 3
    assert sum(segment["rows"] - segment["deletedRows"] for segment in found) == 8
    assert {segment["status"] for segment in found} == {"Success"}
    assert found[0].keys() == {
        "name",
        "level",
        "status",
        "interval",
        "loadTime",
        "files",
        "bytes",
        "rows",
        "deletedRows",
        "loads",
        "parents",
    }


def test_segments_of_an_older_version(tandem: Tandem, table: Path) -> None:
    found = json.loads(tandem("table", "segments", table, "--version", "1", "-o", "json").stdout)
    assert len(found) == 2


def test_segments_all_shows_those_that_are_gone(tandem: Tandem, table: Path) -> None:
    DeltaTable(str(table)).optimize.compact()
    live = json.loads(tandem("table", "segments", table, "-o", "json").stdout)
    every = json.loads(tandem("table", "segments", table, "--all", "-o", "json").stdout)
    assert len(live) == 1
    assert {segment["status"] for segment in every} == {"Success", "Compacted", "MarkedForDelete"}


def test_show_agrees_with_deltalake(tandem: Tandem, table: Path) -> None:
    facts = json.loads(tandem("table", "show", table, "-o", "json").stdout)
    theirs = DeltaTable(str(table))
    assert facts["version"] == theirs.version()
    assert facts["files"] == len(theirs.file_uris())
    assert facts["rows"] == 8
    assert facts["columns"] == {"id": "long", "name": "string"}
    assert facts["tableId"] == str(theirs.metadata().id)


def test_a_table_is_found_by_location_path_and_name(
    tandem: Tandem, table: Path, tmp_path: Path
) -> None:
    file = tmp_path / "table.yaml"
    file.write_text(
        "apiVersion: tandem.dev/v1alpha1\nkind: LakeTable\nmetadata: {name: mine}\n"
        f"spec: {{location: '{table.as_uri()}'}}\n"
    )
    by_path = tandem("table", "show", table, "-o", "json").stdout
    assert tandem("table", "show", table.as_uri(), "-o", "json").stdout == by_path
    assert tandem("table", "show", "mine", "-f", file, "-o", "json").stdout == by_path
    assert tandem("table", "show", "LakeTable/mine", "-f", file, "-o", "yaml").exit_code == 0
    wrong = tandem("table", "show", "other", "-f", file)
    assert wrong.exit_code == 2
    assert "one of mine" in wrong.stderr


@pytest.mark.parametrize("command", [["log", "show"], ["scan"], ["table", "show"]])
def test_credentials_in_a_location_are_not_shown(tandem: Tandem, command: list[str]) -> None:
    result = tandem(*command, "s3://hidden:hidden@lake/t")
    assert result.exit_code == 2
    assert "lake/t" in result.stderr
    assert "hidden" not in result.stderr + result.stdout


def test_history_is_newest_first(tandem: Tandem, table: Path) -> None:
    found = json.loads(tandem("history", table, "-o", "json", "--limit", "2").stdout)
    assert [(commit["version"], commit["operation"]) for commit in found] == [
        (3, "DELETE"),
        (2, "WRITE"),
    ]


@pytest.mark.parametrize("command", [["table", "segments"], ["table", "show"], ["history"]])
def test_the_same_is_shown_as_a_table_for_people(
    tandem: Tandem, table: Path, command: list[str]
) -> None:
    result = tandem(*command, table)
    assert result.exit_code == 0
    assert "version" in result.stdout or "segment" in result.stdout


def test_printed_tables_leave_out_empty_columns(
    tandem: Tandem, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = tandem("table", "segments", table).stdout
    assert "interval" not in found
    assert "parents" not in found
    commits = tandem("history", table).stdout
    assert not re.search(r"T\d\d:\d\d", commits)
    # What a narrow terminal shows: names are whole.
    monkeypatch.setattr("tandem.cli.output.PIPE_WIDTH", 80)
    names = [
        row["name"] for row in json.loads(tandem("table", "segments", table, "-o", "json").stdout)
    ]
    narrow = tandem("table", "segments", table).stdout
    assert all(name in narrow for name in names)
    assert max(map(len, narrow.splitlines())) <= 80
    tandem("compact", table)
    [ours, *_] = json.loads(tandem("history", table, "-o", "json").stdout)
    narrow = tandem("history", table).stdout
    assert re.search(rf"(?m)  {ours['by'].rpartition('/')[2]}(  |$)", narrow)
    assert max(map(len, narrow.splitlines())) <= 80


def test_locks_of_another_process_are_not_visible_without_a_cluster(
    tandem: Tandem, table: Path
) -> None:
    assert json.loads(tandem("locks", table, "-o", "json").stdout) == []
    shown = tandem("locks", table)
    assert (shown.stdout, "No locks" in shown.stderr) == ("", True)


def test_clean_leaves_a_table_alone_that_has_no_abandoned_attempts(
    tandem: Tandem, table: Path
) -> None:
    before = sorted(path for path in table.rglob("*") if path.is_file())
    assert json.loads(tandem("clean", table, "-o", "json").stdout) == []
    assert sorted(path for path in table.rglob("*") if path.is_file()) == before


def test_clean_removes_what_is_past_the_retention_and_says_why(
    tandem: Tandem, table: Path, tmp_path: Path
) -> None:
    DeltaTable(str(table)).optimize.compact()
    rows = tandem("scan", table, "-o", "json").stdout
    file = tmp_path / "table.yaml"
    file.write_text(
        "apiVersion: tandem.dev/v1alpha1\nkind: LakeTable\nmetadata: {name: lake}\n"
        f"spec: {{location: '{table.as_uri()}', retention: {{files: 0s}}}}\n"
    )
    by_property = json.loads(tandem("clean", table, "-o", "json").stdout)
    assert by_property == []
    before = sorted(path for path in table.rglob("*") if path.is_file())
    listed = json.loads(tandem("clean", "lake", "-f", file, "--dry-run", "-o", "json").stdout)
    assert sorted(path for path in table.rglob("*") if path.is_file()) == before
    assert {each["reason"] for each in listed} == {"Removed"}
    assert {each["message"] for each in listed} == {"removed from the table, past the retention"}
    shown = tandem("clean", "lake", "-f", file)
    assert "removed" in shown.stdout
    assert f"Removed {len(listed)} files" in shown.stderr
    gone = {path for path in before if not path.exists()}
    assert gone == {table / each["path"] for each in listed}
    assert sorted(tandem("scan", table, "-o", "json").stdout.splitlines()) == sorted(
        rows.splitlines()
    )
    assert json.loads(tandem("clean", "lake", "-f", file, "-o", "json").stdout) == []
    nothing = tandem("clean", table)
    assert (nothing.stdout, nothing.stderr) == (
        "",
        "Nothing to remove. Files that older versions refer to are kept until 7 days after a "
        "commit removed them.\n",
    )


@pytest.mark.parametrize(
    ("location", "code", "words"),
    [
        ("nonsense", 2, "neither a location nor the path"),
        ("hdfs://a/b", 2, "file, s3, gs, abfss"),
        ("/no/such/folder", 1, "no Delta table"),
        ("s3a://b/c", 2, "write s3://"),
    ],
)
@pytest.mark.parametrize("command", [["table", "show"], ["history"], ["locks"], ["clean"]])
def test_a_table_that_is_not_there(
    tandem: Tandem, location: str, code: int, words: str, command: list[str]
) -> None:
    result = tandem(*command, location)
    assert result.exit_code == code
    assert words in result.stderr
    assert result.stdout == ""


def test_a_version_that_is_not_there(tandem: Tandem, table: Path) -> None:
    result = tandem("table", "show", table, "--version", "99")
    assert result.exit_code == 1
    assert "VersionNotFound" in result.stderr


def test_a_path_resolves_as_in_a_shell(
    tandem: Tandem, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "far" / "away").mkdir(parents=True)
    (tmp_path / "near").symlink_to(tmp_path / "far" / "away")
    monkeypatch.chdir(tmp_path / "far" / "away")
    absolute = tandem("table", "show", table, "-o", "json").stdout
    for path in ("../../table", "../../near/../../table", "./../../table/."):
        assert tandem("table", "show", path, "-o", "json").stdout == absolute
    assert tandem("clean", "../../table", "--dry-run").exit_code == 0
    assert tandem("table", "show", "../nowhere").exit_code != 0


def test_the_command_line_does_not_import_pandas(table: Path) -> None:
    """pyarrow would, where it is installed, and most commands are shorter than that."""
    code = (
        "import sys\n"
        "from tandem.cli.main import main\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    print({'pyarrow', 'pandas'} & sys.modules.keys())\n"
    )
    command = [sys.executable, "-c", code, "table", "segments", str(table), "-o", "json"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "{'pyarrow'}"


def test_the_remedy_of_an_error_that_names_the_table_can_be_pasted(
    tandem: Tandem, table: Path
) -> None:
    result = tandem("scan", table, "--columns", "nme")
    assert f"remedy:   `tandem table show {table.as_uri()}` lists the columns" in result.stderr


@pytest.mark.parametrize(
    ("location", "said"),
    [
        ("", "the location is empty"),
        ("file:/data/t", "expected: file:///data/t"),
        ("s3a:/lake/t", "expected: s3a://lake/t"),
    ],
)
def test_locations_that_are_none(tandem: Tandem, location: str, said: str) -> None:
    result = tandem("history", location)
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_path_may_begin_with_the_home_directory(
    tandem: Tandem, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(table.parent))
    facts = json.loads(tandem("table", "show", f"~/{table.name}", "-o", "json").stdout)
    assert facts["location"] == table.as_uri()
    monkeypatch.delenv("HOME")
    assert "/~/" in tandem("table", "show", f"~/{table.name}").stderr


@pytest.mark.parametrize("command", ["history", "compact", "maintain"])
def test_errors_about_options_of_a_store_name_the_option(tandem: Tandem, command: str) -> None:
    result = tandem(command, "s3://lake/t", "--option", "regoin=x")
    said = result.stdout + result.stderr
    assert "--option regoin: no such option for s3://" in said
    assert "spec.storage" not in said
    assert "Fix the resource" not in said
