"""Commands without YAML: each does one thing to one table, as a new operation.

Jobs are done without Spark (`support.jobs.quick_jobs`); all else is as it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from cli.invoke import Tandem
from support.foreign.tables import column, write
from tandem.cli.commands.arguments import names_in
from tandem.cli.direct import app
from tandem.cli.direct.resources import DirectOperation, assignments, source
from tandem.delta.log.delta_log import DeltaLog
from tandem.errors import InvalidSpec
from tandem.spec import KINDS, load_text
from tandem.storage import open_store
from tandem.timeline.segments import layout_label

pytestmark = pytest.mark.usefixtures("quick_jobs")


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """Four loads by `deltalake` with its defaults: without deletion vectors."""
    folder = tmp_path / "Events 2026"
    for load in range(4):
        ids = pa.array([load * 2, load * 2 + 1], pa.int64())
        write_deltalake(folder, pa.table({"id": ids, "n": ids}), mode="append")
    return folder


def rows(folder: Path) -> dict[int, int]:
    return {row["id"]: row["n"] for row in pa.table(DeltaTable(folder).scan()).to_pylist()}


def files(folder: Path) -> int:
    return len(DeltaTable(folder).file_uris())


def done(tandem: Tandem, *words: str | Path) -> dict[str, Any]:
    """The status of the one operation of a command."""
    result = tandem(*words, "-o", "json", "-q")
    assert result.exit_code == 0, result.stderr
    _, operation = json.loads(result.stdout)
    status: dict[str, Any] = operation["status"]
    return status


def test_compact_is_optimize(tandem: Tandem, lake: Path) -> None:
    before = rows(lake)
    assert done(tandem, "compact", lake)["result"]["filesRemoved"] == 4
    assert (files(lake), rows(lake)) == (1, before)
    again = done(tandem, "compact", lake)
    assert again["conditions"][0]["reason"] == "NothingToDo"
    assert DeltaTable(lake).version() == 4, "nothing was committed"


def test_compact_takes_the_files_of_a_condition(tandem: Tandem, lake: Path) -> None:
    assert done(tandem, "compact", lake, "--where", "id < 4")["result"]["filesRemoved"] == 2


@pytest.mark.parametrize("command", ["zorder", "sort"])
def test_a_single_segment_is_put_in_order_once(tandem: Tandem, lake: Path, command: str) -> None:
    done(tandem, "compact", lake)
    assert done(tandem, command, lake, "n, id")["result"]["filesRemoved"] == 1
    version = DeltaTable(lake).version()
    assert done(tandem, command, lake, "n,id")["conditions"][0]["reason"] == "NothingToDo"
    assert DeltaTable(lake).version() == version


def test_each_run_is_a_new_operation(tandem: Tandem, lake: Path) -> None:
    words = ("update", lake, "--where", "id = 1", "--set", "n=n + 10")
    done(tandem, *words)
    status = done(tandem, *words)
    assert status["result"]["rowsAffected"]["updated"] == 1
    assert rows(lake)[1] == 21


def test_delete_rewrites_files_and_enables_deletion_vectors_only_if_asked_to(
    tandem: Tandem, lake: Path
) -> None:
    before = DeltaTable(lake).protocol()
    assert done(tandem, "delete", lake, "--where", "id = 5")["result"]["rowsAffected"] == {
        "updated": 0, "deleted": 1, "inserted": 0,
    }  # fmt: skip
    assert DeltaTable(lake).protocol() == before
    words = ("delete", str(lake), "--where", "id >= 4")
    overflow = ("update", str(lake), "--where", "id >= 0", "--set", f"id = id + {2**63 - 1}")
    failed = tandem(*overflow, "--enable-deletion-vectors")
    assert failed.exit_code == 1
    assert DeltaTable(lake).protocol() == before, "it fails after it was planned"
    version = DeltaTable(lake).version()
    wrong = ("delete", str(lake), "--where", "id = 'x'", "--enable-deletion-vectors")
    refused = tandem(*wrong)
    assert refused.exit_code == 1
    assert "InvalidStatement: --where: this is not a valid BIGINT" in refused.stdout
    assert "run the command again" in " ".join(refused.stdout.split())
    assert json.loads(tandem(*wrong, "-o", "json").stdout)[1]["status"]["phase"] == "Failed"
    assert DeltaTable(lake).version() == version, "the table was not upgraded first"
    assert done(tandem, *words, "--enable-deletion-vectors")["result"]["rowsAffected"] == {
        "updated": 0, "deleted": 3, "inserted": 0,
    }  # fmt: skip
    assert DeltaTable(lake).protocol().min_reader_version == 3
    assert set(rows(lake)) == {0, 1, 2, 3}


def test_only_a_statement_that_can_be_planned_upgrades_the_table_of_a_file(
    tandem: Tandem, lake: Path, tmp_path: Path
) -> None:
    """With the table in a file, the upgrade is asked for there."""
    table = tmp_path / "table.yaml"
    body = {"apiVersion": "tandem.dev/v1alpha1", "kind": "LakeTable", "metadata": {"name": "lake"}}
    spec = {"location": lake.as_uri(), "enableDeletionVectors": True}
    table.write_text(yaml.safe_dump({**body, "spec": spec}))
    typed = ("delete", "lake", "-f", str(table), "--where")
    version, before = DeltaTable(lake).version(), DeltaTable(lake).protocol()
    for wrong in ("id >", "id = 'x'", "missing = 1"):
        refused = tandem(*typed, wrong)
        assert refused.exit_code == 1
        assert "InvalidStatement" in refused.stdout
        assert (DeltaTable(lake).version(), DeltaTable(lake).protocol()) == (version, before)
    tandem(*typed, "id >= 4", "--dry-run")
    assert DeltaTable(lake).version() == version
    done(tandem, *typed, "id >= 4")
    assert DeltaTable(lake).protocol().min_reader_version == 3
    assert set(rows(lake)) == {0, 1, 2, 3}


def test_an_upgrade_that_would_list_what_rules_the_statement_out_is_refused(
    tandem: Tandem, lake: Path
) -> None:
    """The old protocol does not list the feature; the new one would, and the table be stuck."""
    log = lake / "_delta_log" / f"{0:020d}.json"
    text = log.read_text()
    in_use = '"configuration":{"delta.enableIcebergCompatV2":"true"'
    log.write_text(text.replace('"configuration":{', in_use, 1))
    version, before = DeltaTable(lake).version(), DeltaTable(lake).protocol()
    refused = tandem("delete", lake, "--where", "id >= 4", "--enable-deletion-vectors")
    assert refused.exit_code == 1
    assert "UnsupportedFeature" in refused.stdout
    assert (DeltaTable(lake).version(), DeltaTable(lake).protocol()) == (version, before)


@pytest.mark.parametrize("words", [("delete",), ("update", "--set", "n=0")])
def test_where_vectors_alone_are_allowed_it_is_said_what_to_type(
    tandem: Tandem, lake: Path, tmp_path: Path, words: tuple[str, ...]
) -> None:
    table = tmp_path / "table.yaml"
    body = {"apiVersion": "tandem.dev/v1alpha1", "kind": "LakeTable", "metadata": {"name": "lake"}}
    spec = {"location": lake.as_uri(), "vectors": "Only"}
    table.write_text(yaml.safe_dump({**body, "spec": spec}))
    typed = (words[0], "lake", "-f", str(table), "--where", "id >= 4", *words[1:])
    version = DeltaTable(lake).version()
    refused = tandem(*typed)
    assert refused.exit_code == 1
    said = " ".join(refused.stdout.split())
    assert "DeletionVectorsDisabled" in said
    assert "Add --enable-deletion-vectors" in said
    assert "Add --enable-deletion-vectors" in " ".join(tandem(*typed, "--dry-run").stdout.split())
    assert DeltaTable(lake).version() == version
    done(tandem, *typed, "--enable-deletion-vectors")


def test_a_table_that_is_not_there_is_said_once_and_of_the_argument(
    tandem: Tandem, tmp_path: Path
) -> None:
    refused = tandem("compact", tmp_path / "gone")
    assert refused.exit_code == 1
    shown = " ".join(refused.stdout.split())
    assert "TableNotFound: there is no Delta table at this location" in shown
    assert "spec." not in shown
    assert "WaitingForDependency" not in shown


def test_clauses_of_a_merge_are_named_by_their_options(
    tandem: Tandem, lake: Path, tmp_path: Path
) -> None:
    new = tmp_path / "new.parquet"
    pq.write_table(pa.table({"id": [1], "n": ["x"]}), new)
    words = ("merge", lake, "--from", new, "--on", "t.id = s.id")
    refused = " ".join(tandem(*words, "--set", "n=s.n").stdout.split())
    assert "InvalidStatement: --set.n: STRING cannot be stored in n" in refused
    refused = " ".join(tandem(*words, "--delete-when", "s.gone", "--set", "n=s.n").stdout.split())
    assert "InvalidStatement: --delete-when: " in refused


def test_merge_and_ingest_read_a_source(tandem: Tandem, lake: Path, tmp_path: Path) -> None:
    new = tmp_path / "new.parquet"
    pq.write_table(pa.table({"id": [1, 50], "n": [100, 500]}), new)
    on = ("--on", "t.id = s.id")
    merged = done(tandem, "merge", lake, "--from", new, *on, "--update-all", "--insert-all")
    assert merged["result"]["rowsAffected"] == {"updated": 1, "deleted": 0, "inserted": 1}
    assert (rows(lake)[1], rows(lake)[50]) == (100, 500)
    more = ("--set", "n=s.n + 1", "--delete-when", "s.id = 50")
    merged = done(tandem, "merge", lake, "--from", new, *on, *more)
    assert merged["result"]["rowsAffected"] == {"updated": 1, "deleted": 1, "inserted": 0}
    assert rows(lake)[1] == 101
    again = done(tandem, "ingest", lake, "--from", new)
    assert again["result"]["rowsAffected"]["inserted"] == 2


def test_a_source_of_the_working_directory_needs_no_path(
    tandem: Tandem, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.CSV.gz").touch()
    planned = tandem("ingest", lake, "--from", "in.CSV.gz", "-o", "yaml")
    _, ingest = yaml.safe_load_all(planned.stdout)
    location = (tmp_path / "in.CSV.gz").as_uri()
    assert ingest["spec"]["source"] == {"format": "Csv", "location": location}


def test_the_format_of_a_source_is_that_of_its_name(tmp_path: Path, lake: Path) -> None:
    mixed, one, hive = tmp_path / "mixed", tmp_path / "one", tmp_path / "hive"
    for folder, names in (
        (mixed, ("a.csv", "b.json")),
        (one, ("a.ndjson", "b.json", "_SUCCESS")),
        (hive, ("year=2024.x/m=1/a.parquet", "_y=1/b.parquet", "_SUCCESS", "_temporary/c.csv")),
    ):
        for name in names:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).touch()
    for location, expected in (
        (str(lake), "Delta"),
        (str(one), "Json"),
        (str(hive), "Parquet"),
        (str(hive / "year=2024.x"), "Parquet"),
        ("s3://bucket/in.parquet", "Parquet"),
        ("s3://bucket/day=1/x.tsv.gz", "Csv"),
    ):
        read = DirectOperation("TableIngest", {"source": source(location, None, (), None)})
        assert read.spec["source"]["format"] == expected
    for location in (str(mixed), "s3://bucket/in"):
        with pytest.raises(InvalidSpec, match="does not tell its format") as refused:
            source(location, None, (), None)
        assert "--format" in refused.value.remedy


COMMANDS: list[tuple[str, Sequence[str]]] = [
    ("compact", ()),
    ("zorder", ("id,n",)),
    ("sort", ("id",)),
    ("update", ("--where", "id = 1", "--set", "n=0")),
    ("delete", ("--where", "id = 1")),
    ("merge", ("--from", "in.parquet", "--on", "t.id = s.id", "--insert-all")),
    ("ingest", ("--from", "in.parquet")),
    ("maintain", ()),
]


@pytest.mark.parametrize(("command", "more"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_dry_run_plans_and_yaml_prints_what_run_takes(
    tandem: Tandem, lake: Path, tmp_path: Path, command: str, more: Sequence[str]
) -> None:
    words = (command, lake, *more)
    planned = tandem(*words, "--dry-run")
    assert planned.exit_code == 0, planned.stderr
    assert re.search(rf"/{command}-\d{{8}}-\d{{6}}-[0-9a-f]{{4}}: Planned", planned.stdout)
    printed = tandem(*words, "-o", "yaml").stdout
    table, operation = load_text(printed)
    assert table.name == "events-2026"
    assert operation.kind_name in KINDS
    resources = tmp_path / "resources.yaml"
    resources.write_text(printed)
    assert tandem("plan", "-f", resources).exit_code == 0
    assert DeltaTable(lake).version() == 3, "nothing was written"


def test_every_command_is_tried_here() -> None:
    assert [name for name, _ in COMMANDS] == [each.__name__ for each in app.COMMANDS]


@pytest.mark.parametrize(
    ("words", "option", "said"),
    [
        (("compact", "--target-file-size", "3x"), "--target-file-size", "must be a size"),
        (("compact", "--option", "secret=x"), "--option", "must not contain secrets"),
        (("zorder", "id,"), "COLUMNS", "not a list of names"),
        (("sort", "`id"), "COLUMNS", "Put a name in backquotes"),
        (("update", "--where", " ", "--set", "n=1"), "--where", "must not be empty"),
        (("update", "--where", "true", "--set", "n"), "--set", "not an assignment"),
        (("update", "--where", "true", "--set", "n=1", "--set", "N=2"), "--set", "twice"),
        (("merge", "--from", "a.csv", "--on", "true"), "tandem merge", "does nothing"),
        (("ingest", "--from", "a.csv", "--source-version", "1"), "--from", "only goes"),
        (("ingest", "--from", "a.csv", "--source-option", "x"), "--source-option", "KEY=VALUE"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_errors_name_the_option_that_was_typed(
    tandem: Tandem, lake: Path, words: Sequence[str], option: str, said: str
) -> None:
    command, *rest = words
    refused = tandem(command, lake, *rest)
    assert refused.exit_code == 2
    assert refused.stderr.startswith(f"Error (InvalidSpec): {option}"), refused.stderr
    assert said in refused.stderr
    assert "docs/resources.md" not in refused.stderr


def test_assignments_are_split_at_the_first_sign_outside_a_name() -> None:
    assert assignments(["a=b = c", " x y = 1", "`a=``b`='='", "` c `=s.`=`", "a.b==1"]) == {
        "a": "b = c",
        "x y": "1",
        "`a=``b`": "'='",
        "` c `": "s.`=`",
        "a.b": "=1",
    }
    with pytest.raises(InvalidSpec, match="twice"):
        assignments(["a=1", "`A`=2"])


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ["a"]),
        ("a, b ,c d", ["a", "b", "c d"]),
        ("` c `", [" c "]),
        (" ` c ` , c", [" c ", "c"]),
        ("`a,b`,c", ["a,b", "c"]),
        ("a.b,`a.b`", ["a.b", "a.b"]),
        ("a`b,```a``,`", ["a`b", "`a`,"]),
        ("x=y,\n`\n`", ["x=y", "\n"]),
    ],
)
def test_names_in_backquotes_are_taken_as_they_are(text: str, names: list[str]) -> None:
    assert names_in(text, "--columns") == names


@given(st.lists(st.text("ab `,.=\n", min_size=1), min_size=1))
def test_every_name_can_be_typed(names: list[str]) -> None:
    quoted = ["`" + name.replace("`", "``") + "`" for name in names]
    assert names_in(", ".join(quoted), "--columns") == names
    keys = {name.lower() for name in names}
    found = assignments([f"{each}=1" for each in dict.fromkeys(quoted)][: len(keys)])
    assert set(found) <= set(quoted)


@pytest.mark.parametrize("text", ["", " ", ",", "a,", "a,,b", "`a", "`a`b", "``", "`a` b,c"])
def test_what_is_no_list_of_names_is_refused(text: str) -> None:
    with pytest.raises(InvalidSpec, match="not a list of names") as refused:
        names_in(text, "--columns")
    assert refused.value.resource == "--columns"


ODD = ("c", " c ", "a,b", "a", "a.b", "`a`", "x=y", "n o")
"""Names of columns that differ from others by a character that commands take for their own."""


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """Two rows; also a struct with a field, and a column whose name is that of the field."""
    root = tmp_path / "odd"
    fields = {name: pa.array([0, 0], pa.int64()) for name in ODD}
    struct = {"type": "struct", "fields": [column("b")]}
    write(root, *map(column, ODD), column("s", struct), column("s.b"), rows=pa.table(fields))
    return root


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("command", ["sort", "zorder"])
def test_a_name_in_backquotes_is_the_column_that_is_ordered_by(
    tandem: Tandem, odd: Path, command: str, name: str
) -> None:
    quoted = "`" + name.replace("`", "``") + "`"
    printed = tandem(command, odd, f" {quoted} ,c" if name != "c" else quoted, "-o", "yaml").stdout
    columns = list(yaml.safe_load_all(printed))[1]["spec"]["layout"]["columns"]
    assert columns == ([name, "c"] if name != "c" else ["c"])
    assert done(tandem, command, odd, quoted)["phase"] == "Succeeded"
    [add] = DeltaLog(open_store(str(odd))).snapshot().adds()
    strategy = {"sort": "Sort", "zorder": "ZOrder"}[command]
    assert add.tags["tandem.layout"] == layout_label(strategy, [name])


@pytest.mark.parametrize("name", [*ODD, "s.b"])
def test_set_names_the_column_in_backquotes(tandem: Tandem, odd: Path, name: str) -> None:
    quoted = "`" + name.replace("`", "``") + "`"
    words = ("--where", "true", "--set", f" {quoted} = 7", "--enable-deletion-vectors")
    assert done(tandem, "update", odd, *words)["result"]["rowsAffected"]["updated"] == 2
    rows = tandem("scan", odd, "-o", "json").stdout.splitlines()
    changed = [{key for key, value in json.loads(row).items() if value == 7} for row in rows]
    assert changed == [{name}, {name}]
    shown = tandem("scan", odd, "--columns", f"{quoted},c", "-o", "json").stdout.splitlines()
    assert list(json.loads(shown[0])) == list(dict.fromkeys([name, "c"]))
    bounds = tandem("index", "bounds", odd, "--columns", quoted, "-o", "json").stdout
    assert json.loads(bounds)["columns"] == [{"column": name, "least": 7, "greatest": 7}]


def test_a_laketable_of_a_file_gives_its_settings(
    tandem: Tandem, lake: Path, tmp_path: Path
) -> None:
    file = tmp_path / "lake.yaml"
    file.write_text(
        "apiVersion: tandem.dev/v1alpha1\nkind: LakeTable\n"
        "metadata: {name: events, namespace: team}\n"
        f"spec: {{location: '{lake.as_uri()}', enableDeletionVectors: true}}\n"
    )
    words = ("delete", "events", "-f", file, "--where", "id = 1")
    table, operation = yaml.safe_load_all(tandem(*words, "-o", "yaml").stdout)
    assert table["spec"]["enableDeletionVectors"] is True
    assert operation["metadata"]["namespace"] == "team"
    assert done(tandem, *words)["phase"] == "Succeeded"
    assert 1 not in rows(lake)


def test_what_failed_says_what_to_do_and_does_not_repeat_the_command(
    tandem: Tandem, lake: Path
) -> None:
    refused = tandem("zorder", lake, "nn")
    assert refused.exit_code == 1
    shown = " ".join(refused.stdout.split())
    assert "no column nn" in shown
    assert shown.endswith("If you fixed the table or the source: run the command again.")
    assert "tandem zorder" not in shown


def test_a_table_that_is_refused_is_so_by_the_command_that_was_typed(
    tandem: Tandem, lake: Path
) -> None:
    log = lake / "_delta_log" / f"{4:020}.json"
    features = ["appendOnly", "domainMetadata", "fromTheFuture"]
    protocol = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": features}
    log.write_text(json.dumps({"protocol": protocol}) + "\n")
    for words in (("delete", "--where", "id = 1"), ("compact",), ("zorder", "n")):
        command, *rest = words
        refused = tandem(command, lake, *rest)
        assert refused.exit_code == 1
        shown = " ".join(refused.stdout.split())
        assert f"UnsupportedFeature: {command} is refused because of fromTheFuture: " in shown
        assert shown.endswith("Once that is fixed, run the command again.")
    assert DeltaTable(lake).version() == 4, "nothing was committed"


# maintain

LAKE = """
apiVersion: tandem.dev/v1alpha1
kind: LakeTable
metadata: {{name: events}}
spec:
  location: "{location}"
  enableDeletionVectors: true
  retention: {{files: 0s}}
  compaction:
    minor: {{thresholds: [2, 2]}}
    schedules:
    - {{cron: "* * * * *", template: {{type: SemiMajor, layout: {{strategy: Sort, columns: [n]}}}}}}
"""


def test_maintain_does_what_is_due_once(tandem: Tandem, lake: Path, tmp_path: Path) -> None:
    file = tmp_path / "lake.yaml"
    file.write_text(LAKE.format(location=lake.as_uri()))
    before = rows(lake)
    planned = tandem("maintain", file, "--dry-run")
    assert "TableCompaction/events-minor-" in planned.stdout
    assert DeltaTable(lake).version() == 3
    result = tandem("maintain", file, "-o", "json")
    assert result.exit_code == 0, result.stderr
    _, *operations = json.loads(result.stdout)
    assert [each["spec"]["type"] for each in operations] == ["Minor", "SemiMajor"]
    assert all(each["status"]["phase"] == "Succeeded" for each in operations)
    assert (files(lake), rows(lake)) == (1, before)
    assert "Removed " in result.stderr, "the files of the loads, which no version needs any more"
    version = DeltaTable(lake).version()
    again = tandem("maintain", file, "-o", "json")
    assert again.exit_code == 0
    assert DeltaTable(lake).version() == version, "nothing is due"


def test_maintain_runs_a_schedule_once_each_time_it_fires(
    tandem: Tandem, lake: Path, tmp_path: Path
) -> None:
    file = tmp_path / "lake.yaml"
    text = LAKE.format(location=lake.as_uri()).replace("* * * * *", "0 3 1 1 *")
    file.write_text(text.replace("minor: {thresholds: [2, 2]}", ""))
    tandem("maintain", file)
    version = DeltaTable(lake).version()
    write_deltalake(lake, pa.table({"id": [90], "n": [90]}), mode="append")
    assert tandem("maintain", file).exit_code == 0
    assert DeltaTable(lake).version() == version + 1, "the year has had its run"


def test_maintain_of_a_location_compacts_and_cleans(tandem: Tandem, lake: Path) -> None:
    assert done(tandem, "maintain", lake)["result"]["filesRemoved"] == 4
    assert done(tandem, "maintain", lake)["conditions"][0]["reason"] == "NothingToDo"
    assert files(lake) == 1


def test_maintain_says_that_nothing_is_due(tandem: Tandem, lake: Path, tmp_path: Path) -> None:
    file = tmp_path / "lake.yaml"
    file.write_text(LAKE.format(location=lake.as_uri()).partition("    schedules")[0])
    tandem("maintain", file)
    result = tandem("maintain", file)
    assert result.exit_code == 0
    assert "LakeTable/events: nothing is due." in result.stderr
    assert result.stdout == ""


def test_maintain_fails_where_the_table_is_not_there(tandem: Tandem, tmp_path: Path) -> None:
    file = tmp_path / "lake.yaml"
    file.write_text(LAKE.format(location=(tmp_path / "none").as_uri()))
    assert tandem("maintain", file).exit_code == 1
    assert tandem("maintain", tmp_path / "none").exit_code == 1
    file.write_text(file.read_text().partition("---")[0].replace("LakeTable", "TableIngest"))
    assert tandem("maintain", file).exit_code == 2


def test_scan_shows_a_table_as_of_a_time(tandem: Tandem, lake: Path) -> None:
    found = tandem("scan", lake, "--timestamp", "2999", "-o", "json").stdout.splitlines()
    assert len(found) == 8
    assert tandem("scan", lake, "--timestamp", "2001").exit_code == 1
    assert tandem("scan", lake, "--timestamp", "2999", "--version", "1").exit_code == 2


def test_a_plan_of_nothing_has_no_zeros(tandem: Tandem, lake: Path, tmp_path: Path) -> None:
    assert tandem("compact", lake, "-q").exit_code == 0
    file = tmp_path / "compact.yaml"
    file.write_text(tandem("compact", lake, "-o", "yaml").stdout)
    idle = tandem("plan", "-f", file).stdout
    assert "Nothing to do, the files already match the request." in idle
    assert tandem("run", "-f", file, "-q").exit_code == 0
    recorded = tandem("plan", "-f", file).stdout
    assert "Succeeded already, the files already match the request." in recorded
    for name in ("writes", "runs"):
        assert f"\n  {name} " not in idle + recorded
