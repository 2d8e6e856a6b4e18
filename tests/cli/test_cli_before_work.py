"""What is wrong with a statement or with the columns of a source is found by `plan`, and by `run`
before a job starts and before anything is written to the log."""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from deltalake import DeltaTable, write_deltalake
from deltalake.schema import Field, PrimitiveType, Schema

from cli.invoke import Tandem
from tandem import mergelog
from tandem.delta.log.delta_log import DeltaLog
from tandem.errors import AccessDenied, BucketNotFound, TandemError
from tandem.jobs.runner import JobRequest, JobStatus
from tandem.json_types import Json
from tandem.mergelog.log_table import LogSettings, MergeLog, ensure_log
from tandem.operations import runner
from tandem.operations.kinds import sources
from tandem.operations.ports import Ports
from tandem.operations.session.job_control import FileJobs
from tandem.spark.runtime import listing
from tandem.storage import open_store

VECTORS = ("--enable-deletion-vectors",)
ON = ("--on", "t.id = s.id", *VECTORS)
HEADER = ("--source-option", "header=true")


class NoJobs:
    """A `JobRunner` that is not called."""

    def start(self, request: JobRequest) -> None:
        raise AssertionError(f"a job was started: {request.name}")

    def status(self, name: str) -> JobStatus:
        raise AssertionError(f"a job was looked for: {name}")

    def stop(self, name: str) -> None:
        raise AssertionError(f"a job was stopped: {name}")


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(runner, "local_ports", lambda: Ports(jobs=FileJobs(NoJobs())))
    folder = tmp_path / "lake"
    columns = (("id", "long", False), ("name", "string", True), ("day", "date", True))
    schema = Schema(
        [Field(name, PrimitiveType(type_), nullable=null) for name, type_, null in columns]
    )
    vectors = {"delta.enableDeletionVectors": "true"}
    DeltaTable.create(folder, schema, configuration=vectors)
    ids, names = pa.array([1, 2], pa.int64()), pa.array(["a", "b"])
    rows = pa.table({"id": ids, "name": names, "day": pa.array([None, None], pa.date32())})
    write_deltalake(folder, rows.cast(pa.schema([
        pa.field("id", pa.int64(), nullable=False), ("name", pa.string()), ("day", pa.date32()),
    ])), mode="append")  # fmt: skip
    return folder


def refused(tandem: Tandem, lake: Path, *words: str | Path) -> str:
    """The message of a refusal, which `plan` and `run` give alike."""
    version = DeltaTable(lake).version()
    command, *rest = words
    planned = tandem(command, lake, *rest, "--dry-run")
    assert planned.exit_code == 1, planned.stdout
    assert "Would fail" in planned.stdout
    ran = tandem(command, lake, *rest, "-o", "json", "-q")
    assert ran.exit_code == 1, ran.stdout
    _, operation = json.loads(ran.stdout)
    assert DeltaTable(lake).version() == version, "something was written to the log"
    condition = operation["status"]["conditions"][0]
    message: str = f"{condition['reason']}: {condition['message']}"
    shown = " ".join(planned.stdout.split())
    assert " ".join(condition["message"].split("(found")[0].split()).partition("/")[0] in shown
    return message


@pytest.mark.parametrize(
    "words",
    [
        ("delete", "--where", "id = 'abc'"),
        ("delete", "--where", "day > '2013-13-01'"),
        ("update", "--where", "id IN (1, 'x')", "--set", "name='y'"),
        ("update", "--where", "true", "--set", "id=99999999999999999999"),
        ("update", "--where", "true", "--set", "day='2013-01-01'"),
        ("compact", "--where", "day = 'x'"),
    ],
    ids=" ".join,
)
def test_a_wrong_constant_costs_no_job(tandem: Tandem, lake: Path, words: Sequence[str]) -> None:
    vectors = VECTORS if words[0] != "compact" else ()
    assert refused(tandem, lake, *words, *vectors).startswith("InvalidStatement: ")


def test_a_wrong_header_costs_no_job(tandem: Tandem, lake: Path, tmp_path: Path) -> None:
    file = tmp_path / "in.csv"
    file.write_text("id,nam\n3,c\n")
    message = refused(tandem, lake, "ingest", "--from", file, *HEADER)
    assert "the source has columns that the table lacks" in message
    assert "found: nam in in.csv" in message
    message = refused(tandem, lake, "ingest", "--from", file)
    assert "set header" in message
    file.write_text("id,name,day\n3,c,2026-01-01\n")
    message = refused(tandem, lake, "ingest", "--from", file)
    assert "the first line of a CSV source names columns" in message
    shown = " ".join(tandem("ingest", lake, "--from", file).stdout.split())
    assert "names the columns, add --source-option header=true;" in shown
    file.write_text("id,nam\n3,c\n")
    message = refused(tandem, lake, "merge", "--from", file, *HEADER, *ON, "--update-all")
    assert "the source must have every column of the table" in message
    message = refused(tandem, lake, "merge", "--from", file, *HEADER, *ON, "--set", "name=s.name")
    assert "nam" in message
    file.write_text("name\nc\n")
    message = refused(tandem, lake, "ingest", "--from", file, *HEADER)
    assert "lacks columns that must not be null" in message


@pytest.mark.parametrize("form", ["Parquet", "Delta", "Json"])
def test_other_sources_are_checked_too(
    tandem: Tandem, lake: Path, tmp_path: Path, form: str
) -> None:
    rows = pa.table({"id": [3], "nam": ["c"]})
    source = tmp_path / "source.json"
    source.write_text('{"id": 3, "nam": "c"}\n')
    if form == "Parquet":
        source = tmp_path / "source.parquet"
        pq.write_table(rows, source)
    elif form == "Delta":
        source = tmp_path / "source"
        write_deltalake(source, rows)
    assert "found: nam in " in refused(tandem, lake, "ingest", "--from", source)
    message = refused(tandem, lake, "merge", "--from", source, *ON, "--update-all")
    assert "the source must have every column" in message


def test_a_merge_from_json_is_checked_where_all_lines_leave_no_doubt(
    tandem: Tandem, lake: Path, tmp_path: Path
) -> None:
    source = tmp_path / "source.json"
    words = ("merge", "--from", source, *ON, "--set", "name=s.other")
    source.write_text('{"id": 3}\n{"id": 4, "NAME": "c"}\n')
    assert "other" in refused(tandem, lake, *words)
    source.write_text('{"id": 3, "n": 1}\n\n{"id": 4, "n": 2.5}\n')
    message = refused(tandem, lake, "merge", "--from", source, *ON, "--set", "day=s.n")
    assert "DOUBLE cannot be stored in day" in message
    for text in (
        '{"id": 3}\n{"id": 4, "other": "c"}\n',  # a later line has it
        '{"id": 3}\n[{"id": 4, "other": "c"}]\n',
        '{"id": 3}\n{"id": 4, "x": {"other": 1}}\n',  # its type is for Spark to say
        '{"id": 3}\n{"id": 4,\n',
        '{"id": 3, "ID": 4}\n',
        "",
    ):
        source.write_text(text)
        planned = tandem(words[0], lake, *words[1:], "--dry-run")
        assert planned.exit_code == 0, text + planned.stdout


@pytest.mark.parametrize("form", ["parquet", "csv", "json"])
def test_columns_of_folders_are_checked_too(
    tandem: Tandem, lake: Path, tmp_path: Path, form: str
) -> None:
    def put(name: str) -> Path:
        file = tmp_path / "in" / f"{name}.{form}"
        file.parent.mkdir(parents=True, exist_ok=True)
        if form == "parquet":
            pq.write_table(pa.table({"name": ["c"]}), file)
        else:
            file.write_text("name\nc\n" if form == "csv" else '{"name": "c"}\n')
        return file

    header = HEADER if form == "csv" else ()
    words = ("ingest", "--from", tmp_path / "in", *header)
    first = put("id=3/day=2026-01-01/x")
    planned = tandem(words[0], lake, *words[1:], "--dry-run")
    assert planned.exit_code == 0, planned.stdout
    one = ("ingest", lake, "--from", first.parent, *header, "--dry-run")
    assert tandem(*one).exit_code == 0, "the column that must not be null is that of the folder"
    second = put("id=many/day=2026-01-01/x")
    message = refused(tandem, lake, *words)
    assert message.startswith("StatementFailed: ")
    assert "the name of a folder is no value of its column (found: many; expected: a" in message
    second.unlink()
    second = put("id=4/x")
    message = refused(tandem, lake, *words)
    assert "the folders of the source do not agree on their partition columns" in message
    second.unlink()
    first.unlink()
    put("id=3/shop=7/x")
    assert "found: shop in id=3/shop=7/x" in refused(tandem, lake, *words)


def test_types_of_a_source_are_checked(tandem: Tandem, lake: Path, tmp_path: Path) -> None:
    source = tmp_path / "source.parquet"
    pq.write_table(pa.table({"id": ["3"], "name": ["c"], "day": ["x"]}), source)
    message = refused(tandem, lake, "ingest", "--from", source)
    assert "another type than the table's" in message
    assert "id: STRING in source.parquet" in message
    message = refused(tandem, lake, "merge", "--from", source, *ON, "--update-all")
    assert "STRING cannot be stored in id" in message


@pytest.mark.parametrize("name", ["none.csv", "none.parquet"])
def test_a_source_that_is_not_there_is_refused_by_a_run_and_may_come_after_a_plan(
    tandem: Tandem, lake: Path, tmp_path: Path, name: str
) -> None:
    words = ("ingest", lake, "--from", tmp_path / name)
    planned = tandem(*words, "--dry-run")
    assert planned.exit_code == 0
    assert planned.stderr.startswith("Warning: --from: nothing to read at ")
    ran = tandem(*words)
    assert ran.exit_code == 1
    assert "InvalidSpec" in ran.stdout
    assert "the source does not exist" in ran.stdout


def by_key(tandem: Tandem, lake: Path, folder: Path, spec: Json) -> str:
    """The message of the refusal of an update by key, which writes nothing to the log of blocks."""
    if not (lake / "_tandem/log").exists():
        ensure_log(
            MergeLog(DeltaLog(open_store(str(lake)))),
            LogSettings(("id",), "day"),
            now_ms=0,
            nonce="1",
        )
    file = folder / "by-key.yaml"
    resources: list[Json] = [
        {
            "apiVersion": "tandem.dev/v1alpha1",
            "kind": "LakeTable",
            "metadata": {"name": "lake"},
            "spec": {"location": lake.as_uri()},
        },
        {
            "apiVersion": "tandem.dev/v1alpha1",
            "kind": "TableUpdate",
            "metadata": {"name": f"by-key-{secrets.token_hex(4)}"},
            "spec": {"tableRef": {"name": "lake"}, **spec},
        },
    ]
    file.write_text(yaml.safe_dump_all(resources))
    log = mergelog.open_log(str(lake))
    version = log.snapshot().version
    planned = tandem("plan", "-f", file)
    assert planned.exit_code == 1, planned.stderr
    assert "Would fail" in planned.stdout
    ran = tandem("run", "-f", file, "-o", "json", "-q")
    assert ran.exit_code == 1, ran.stdout
    assert log.snapshot().version == version, "something was written to the log"
    condition = json.loads(ran.stdout)[1]["status"]["conditions"][0]
    return f"{condition['reason']}: {condition['message']}"


@pytest.mark.parametrize("form", ["Csv", "Parquet", "Json"])
def test_sources_of_updates_by_key_are_checked_too(
    tandem: Tandem, lake: Path, tmp_path: Path, form: str
) -> None:
    def source(columns: dict[str, list[Any]]) -> Json:
        file = tmp_path / f"in.{form.lower()}"
        if form == "Parquet":
            pq.write_table(pa.table(columns), file)
        elif form == "Csv":
            lines = [columns, *zip(*columns.values(), strict=True)]
            file.write_text("".join(",".join(map(str, line)) + "\n" for line in lines))
        else:
            rows = (
                dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
            )
            file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        options = {"options": {"header": "true"}} if form == "Csv" else {}
        return {"source": {"format": form, "location": file.as_uri(), **options}}

    wrong = source({"id": [3], "nam": ["c"], "day": ["2026-01-01"]})
    message = by_key(tandem, lake, tmp_path, {"upsert": wrong})
    assert "the source has columns that the table lacks (found: nam in in." in message
    message = by_key(tandem, lake, tmp_path, {"deleteKeys": wrong})
    assert "besides the keys and the ordering column (found: nam in in." in message
    known = source({"id": [3], "name": ["c"]})
    message = by_key(tandem, lake, tmp_path, {"deleteKeys": known})
    assert "found: name in in." in message
    message = by_key(tandem, lake, tmp_path, {"upsert": known})
    assert "lacks columns that must not be null (found: no day in in." in message
    if form == "Parquet":
        texts = source({"id": ["3"], "day": ["2026-01-01"]})
        message = by_key(tandem, lake, tmp_path, {"deleteKeys": texts})
        assert "another type than the table's" in message


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("text.parquet", b"id,name\n", "damaged, truncated, or not a Parquet file"),
        ("empty.parquet", b"", "damaged, truncated, or not a Parquet file"),
        ("utf-16.csv", "id,name\n3,é\n".encode("utf-16"), "not text of the expected encoding"),
        ("latin-1.csv", "id,né\n".encode("latin-1"), "not text of the expected encoding"),
        ("none.csv.gz", b"id,name\n", "a compressed file of the source is damaged"),
    ],
)
def test_a_source_that_is_not_what_its_name_says_costs_no_job(
    tandem: Tandem, lake: Path, tmp_path: Path, name: str, content: bytes, said: str
) -> None:
    (tmp_path / name).write_bytes(content)
    options = HEADER if ".csv" in name else ()
    message = refused(tandem, lake, "ingest", "--from", tmp_path / name, *options)
    assert said in message
    assert name in message
    message = refused(
        tandem, lake, "merge", "--from", tmp_path / name, *options, *ON, "--update-all"
    )
    assert said in message


def test_a_source_that_may_not_be_read_or_has_no_bucket_costs_no_job(
    tandem: Tandem, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(error: TandemError) -> None:
        def list_source(*_: object, **__: object) -> None:
            raise error

        for module in (listing, sources):
            monkeypatch.setattr(module, "list_source", list_source)

    words = ("ingest", lake, "--from", "s3://other/in.parquet", "-o", "json", "-q")
    fails(AccessDenied("permission denied", resource="s3://other/in.parquet", found="403"))
    message = refused(tandem, lake, *words[:1], *words[2:4])
    assert message.startswith("AccessDenied: ")
    assert "s3://other/in.parquet: permission denied" in message
    fails(BucketNotFound("the bucket does not exist"))
    planned = tandem(*words, "--dry-run")
    assert (planned.exit_code, "nothing to read at" in planned.stderr) == (0, True)
    version = DeltaTable(lake).version()
    ran = tandem(*words)
    assert ran.exit_code == 1
    assert "the source does not exist" in ran.stdout
    assert DeltaTable(lake).version() == version
