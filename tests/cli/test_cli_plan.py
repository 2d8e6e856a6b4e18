"""`tandem plan` for people: what each kind asks for, the source of a merge, and "Planned"."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from cli.invoke import Tandem
from tandem.cli import plan_report

CSV: dict[str, Any] = {"format": "Csv", "options": {"header": "true"}}
MERGE: dict[str, Any] = {
    "on": "t.id = s.id",
    "whenMatched": [{"where": "s.name = 'a WHEN MATCHED b'", "delete": {}}, {"updateAll": {}}],
    "whenNotMatched": [{"insertAll": {}}],
}


def typed(table: Path, kind: str, spec: dict[str, Any]) -> str:
    """A file with the LakeTable `lake` and one operation, `o`."""
    head = {"apiVersion": "tandem.dev/v1alpha1"}
    lake = {"location": table.as_uri(), "enableDeletionVectors": True}
    spec = {"tableRef": {"name": "lake"}, **spec}
    return yaml.safe_dump_all(
        [
            {**head, "kind": "LakeTable", "metadata": {"name": "lake"}, "spec": lake},
            {**head, "kind": kind, "metadata": {"name": "o"}, "spec": spec},
        ]
    )


def block(out: str, head: str) -> list[str]:
    """The lines of one block, without the blanks that fill them."""
    lines = [" ".join(line.split()) for line in out.splitlines()]
    start = lines.index(head)
    return lines[start : lines.index("", start)]


def test_a_plan_says_planned_and_its_status_is_that_of_a_dry_run(
    tandem: Tandem, table: Path
) -> None:
    text = typed(table, "TableCompaction", {"type": "Major"})
    shown = tandem("plan", "-f", "-", input_=text).stdout
    lines = block(shown, "TableCompaction/o: Planned")
    assert "layout BinPack: rows keep their order" in lines
    assert "runs in this process, without Spark" in lines
    assert block(shown, "LakeTable/lake: would enable deletion vectors")[1].startswith(
        "is at version 3: 3 files"
    )
    found = json.loads(tandem("plan", "-f", "-", "-o", "json", input_=text).stdout)
    assert found[1]["status"]["phase"] == "Succeeded"
    assert found[1]["status"]["conditions"][0]["reason"] == "DryRun"


def test_a_plan_of_a_sort_says_that_it_needs_spark_for_many_rows(
    tandem: Tandem, table: Path
) -> None:
    layout = {"strategy": "Sort", "columns": ["id"]}
    text = typed(table, "TableCompaction", {"type": "Major", "layout": layout})
    lines = block(tandem("plan", "-f", "-", input_=text).stdout, "TableCompaction/o: Planned")
    assert "runs in this process, without Spark, if the rows fit into memory" in lines


@pytest.mark.parametrize("statement", [
    {"delete": {"where": "id = 1"}},
    {"update": {"where": "id = 1", "set": {"id": "2"}}},
], ids=["delete", "update"])  # fmt: skip
def test_a_plan_of_a_small_statement_says_that_spark_may_not_be_needed(
    tandem: Tandem, table: Path, statement: dict[str, Any]
) -> None:
    shown = tandem("plan", "-f", "-", input_=typed(table, "TableUpdate", statement)).stdout
    lines = block(shown, "TableUpdate/o: Planned")
    assert "runs in this process, without Spark, unless an expression or a row needs it" in lines


@pytest.mark.parametrize("form", ["Parquet", "Csv"])
def test_a_plan_of_a_small_merge_says_whether_spark_may_not_be_needed(
    tandem: Tandem, table: Path, tmp_path: Path, form: str
) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "s")
    options = {"header": "true"} if form == "Csv" else {}
    source = {"format": form, "location": (tmp_path / "s").as_uri(), "options": options}
    merge = {"source": source, "on": "t.id = s.id", "whenMatched": [{"delete": {}}]}
    if form == "Csv":
        (tmp_path / "s").write_text("id\n1\n")
    shown = tandem("plan", "-f", "-", input_=typed(table, "TableUpdate", {"merge": merge})).stdout
    lines = block(shown, "TableUpdate/o: Planned")
    where = (
        "runs in this process, without Spark, unless the source, an expression or a row needs it"
    )
    assert (where in lines) == (form == "Parquet")


def test_a_template_whose_texts_spark_would_split_is_refused_before_anything_starts(
    tandem: Tandem, table: Path
) -> None:
    for command in ("plan", "run"):
        for key in ("spark.jars=x", "spark.sql.ansi.enabled"):
            template = {"spec": {"sparkConf": {key: "false"}}}
            text = typed(table, "TableCompaction", {"type": "Major", "sparkTemplate": template})
            refused = tandem(command, "-f", "-", input_=text)
            assert refused.exit_code == 2
            assert f"TableCompaction/o.spec.sparkTemplate.spec.sparkConf.{key}" in refused.stderr


def test_a_plan_with_nothing_to_do_says_why(tandem: Tandem, table: Path) -> None:
    text = typed(table, "TableCompaction", {"type": "Minor"})
    shown = tandem("plan", "-f", "-", input_=text).stdout
    assert "TableCompaction/o: Nothing to do, " in shown


@pytest.mark.parametrize(
    ("kind", "spec", "line"),
    [
        (
            "TableCompaction",
            {"type": "Major", "layout": {"strategy": "ZOrder", "columns": ["NAME", "id"]}},
            "layout ZOrder by NAME, id",
        ),
        (
            "SegmentRewrite",
            {
                "segments": ["?"],
                "rewrite": {
                    "purgeDeleted": True,
                    "recompress": {"codec": "zstd", "level": 9},
                    "sortBy": ["id"],
                },
            },
            "rewrite purge deleted rows; recompress with zstd, level 9; sort by id",
        ),
    ],
)
def test_a_plan_says_how_files_are_written(
    tandem: Tandem, table: Path, kind: str, spec: dict[str, Any], line: str
) -> None:
    [name, *_] = json.loads(tandem("table", "segments", table, "-o", "json").stdout)
    if "segments" in spec:
        spec = {**spec, "segments": [name["name"]]}
    shown = tandem("plan", "-f", "-", input_=typed(table, kind, spec)).stdout
    assert line in block(shown, f"{kind}/o: Planned")


def test_a_plan_of_a_merge_has_its_source_and_a_line_for_every_clause(
    tandem: Tandem, table: Path, tmp_path: Path
) -> None:
    file = tmp_path / "in.csv"
    file.write_text("id,name\n1,x\n")
    merge = {**MERGE, "source": {**CSV, "location": file.as_uri()}}
    result = tandem("plan", "-f", "-", input_=typed(table, "TableUpdate", {"merge": merge}))
    assert block(result.stdout, "TableUpdate/o: Planned")[1:6] == [
        "statement MERGE ON (`t`.`id` = `s`.`id`)",
        "WHEN MATCHED AND (`s`.`name` = 'a WHEN MATCHED b') THEN DELETE",
        "WHEN MATCHED THEN UPDATE SET *",
        "WHEN NOT MATCHED THEN INSERT *",
        f"source Csv {file.as_uri()}; 1 file, 12 B",
    ]
    assert "Warning" not in result.stderr


@pytest.mark.parametrize("version", [None, 1, 9])
def test_a_plan_names_the_version_of_a_delta_source(
    tandem: Tandem, table: Path, version: int | None
) -> None:
    source: dict[str, Any] = {"format": "Delta", "location": table.as_uri()}
    if version is not None:
        source["version"] = version
    text = typed(table, "TableUpdate", {"merge": {**MERGE, "source": source}})
    result = tandem("plan", "-f", "-", input_=text)
    expected = {
        None: "its latest version; now 3",
        1: "version 1; 2 files",
        9: "version 9; not there",
    }
    assert f"source Delta {table.as_uri()}, {expected[version]}" in " ".join(result.stdout.split())
    assert ("Warning: TableUpdate/o.spec.merge.source.location: " in result.stderr) is (
        version == 9
    )


@pytest.mark.parametrize(
    ("kind", "form", "field"),
    [
        ("TableUpdate", "Csv", "spec.merge.source"),
        ("TableUpdate", "Delta", "spec.merge.source"),
        ("TableIngest", "Parquet", "spec.source"),
    ],
)
def test_a_source_that_is_not_there_is_warned_of(
    tandem: Tandem, table: Path, tmp_path: Path, kind: str, form: str, field: str
) -> None:
    source = {"format": form, "location": (tmp_path / "none").as_uri()}
    spec = {"source": source} if kind == "TableIngest" else {"merge": {**MERGE, "source": source}}
    result = tandem("plan", "-f", "-", "-o", "json", input_=typed(table, kind, spec))
    assert result.stderr.startswith(f"Warning: {kind}/o.{field}.location: ")
    assert source["location"] in result.stderr
    assert json.loads(result.stdout)[1]["status"]["phase"] == "Succeeded"
    assert result.exit_code == 0  # it may exist before the run


def test_a_plan_that_fails_says_so_and_does_not_open_its_source(
    tandem: Tandem, table: Path
) -> None:
    source = {"format": "Csv", "location": "file:///none.csv"}
    merge = {**MERGE, "on": "t.ib = s.id", "source": source}
    result = tandem("plan", "-f", "-", input_=typed(table, "TableUpdate", {"merge": merge}))
    assert "TableUpdate/o: Would fail, InvalidStatement: " in result.stdout
    assert (result.stderr, result.exit_code) == ("", 1)


def test_keywords_in_strings_and_names_are_not_clauses() -> None:
    text = "MERGE ON (`a WHEN MATCHED` = ' WHEN NOT MATCHED \\' WHEN MATCHED') WHEN MATCHED THEN X"
    head, _, tail = text.rpartition(" WHEN")
    assert plan_report.clause_by_clause(text) == f"{head}\nWHEN{tail}"
