"""Shallow clones: tables whose log names files of another table, by absolute paths.

Made by Spark + Delta itself. Each command of ours gives the rows that Spark and `deltalake` read
afterwards, and touches nothing of the source.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from typer.testing import CliRunner, Result

from support.jobs import quick_lake
from support.jobs.quick_jobs import QuickJobs
from support.lake.rows import SCHEMA, Rows, id_in, join, k_is, plus, rows, table, without
from tandem.cli.app import app
from tandem.delta.log.delta_log import DeltaLog
from tandem.errors import LocationNotAllowed
from tandem.jobs.formats import IngestJob, JobTable
from tandem.kube.tables.location_policy import LocationPolicy
from tandem.operations import runner
from tandem.operations.clean import CleaningOptions, clean
from tandem.operations.model import Table
from tandem.operations.ports import Ports
from tandem.operations.session.job_control import FileJobs
from tandem.planning.cleaning import DAY_MS, CleaningRules
from tandem.spark.sources.readers import delta_files
from tandem.spec import LakeTable, parse
from tandem.storage import open_store

FOUR = rows(range(40))
START = without(FOUR, id_in([3]))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, delta_spark: SparkSession) -> Path:
    """A source of four files, one with a deletion vector, and its clone, by Spark."""
    folder = tmp_path_factory.mktemp("clones")
    source = quick_lake.make(folder)
    source.path.rename(folder / "source")
    delta_spark.sql(f"DELETE FROM delta.`{folder}/source` WHERE id = 3")
    delta_spark.sql(f"CREATE TABLE delta.`{folder}/clone` SHALLOW CLONE delta.`{folder}/source`")
    return folder


@pytest.fixture
def clone(made: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The clone; its source must be as it was afterwards. Jobs need no Spark."""
    monkeypatch.setattr(runner, "local_ports", lambda: Ports(jobs=FileJobs(QuickJobs())))
    kept = made / "kept"
    shutil.copytree(made / "clone", kept)
    before = content(made / "source")
    yield made / "clone"
    assert content(made / "source") == before
    shutil.rmtree(made / "clone")
    kept.rename(made / "clone")


def content(folder: Path) -> dict[str, tuple[str, int]]:
    return {
        str(file.relative_to(folder)): (
            hashlib.sha256(file.read_bytes()).hexdigest(),
            file.stat().st_mtime_ns,
        )
        for file in folder.rglob("*")
        if file.is_file()
    }


def tandem(*words: str | Path) -> Result:
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def done(clone: Path, command: str, *words: str | Path) -> None:
    named = ("--clone-source", clone.parent / "source")
    result = tandem(command, clone, *words, *named, "-q")
    assert result.exit_code == 0, result.stdout + result.stderr


def by_tandem(clone: Path) -> Rows:
    result = tandem("scan", clone, "--clone-source", clone.parent / "source", "-o", "json")
    assert result.exit_code == 0, result.stderr
    found = [json.loads(line) for line in result.stdout.splitlines()]
    return tuple(sorted((row["id"], row["k"], row["v"]) for row in found))


def by_deltalake(clone: Path) -> Rows:
    found = pa.table(DeltaTable(clone).scan()).select(SCHEMA.names).to_pylist()
    return tuple(sorted((row["id"], row["k"], row["v"]) for row in found))


def assert_rows(clone: Path, expected: Rows) -> None:
    assert by_tandem(clone) == by_deltalake(clone) == tuple(sorted(expected))


VECTORS = "--enable-deletion-vectors"


def test_the_remedy_of_the_refusal_is_an_option_that_exists(clone: Path) -> None:
    for words in (("scan", clone), ("compact", clone), ("delete", clone, "--where", "id = 1")):
        refused = tandem(*words)
        said = " ".join((refused.stdout + refused.stderr).split())
        assert refused.exit_code == (2 if words[0] == "scan" else 1), said
        assert "the log names an absolute path outside the table" in said
        assert "add --clone-source with the location of its source" in said
    other = tandem("scan", clone, "--clone-source", clone.parent / "other")
    assert "LocationNotAllowed" in other.stderr
    assert by_tandem(clone) == START


def test_the_field_of_the_laketable_says_it_once_and_for_all(clone: Path, tmp_path: Path) -> None:
    file = tmp_path / "lake.yaml"
    lake = {"location": clone.as_uri()}
    file.write_text(json.dumps(document(lake)))
    refused = tandem("scan", "lake", "-f", file)
    assert "to spec.storage.cloneSources of the LakeTable" in " ".join(refused.stderr.split())
    lake["storage"] = {"cloneSources": [(clone.parent / "source").as_uri()]}  # type: ignore[assignment]
    file.write_text(json.dumps(document(lake)))
    assert tandem("scan", "lake", "-f", file).exit_code == 0
    for words in (("compact",), ("index", "verify")):
        result = tandem(*words, "lake", "-f", file)
        assert result.exit_code == 0, result.stdout + result.stderr
    assert tandem("maintain", file).exit_code == 0
    assert by_deltalake(clone) == START


def document(spec: dict[str, Any], **metadata: str) -> dict[str, Any]:
    return {
        "apiVersion": "tandem.dev/v1alpha1",
        "kind": "LakeTable",
        "metadata": {"name": "lake", **metadata},
        "spec": spec,
    }


def test_statements_and_compactions_change_the_clone_alone(clone: Path, tmp_path: Path) -> None:
    done(clone, "update", "--where", "k = 1", "--set", "v=v + 7", VECTORS)
    expected = plus(START, k_is(1), 7)
    assert_rows(clone, expected)
    done(clone, "delete", "--where", "id IN (5, 12)", VECTORS)
    expected = without(expected, id_in([5, 12]))
    assert_rows(clone, expected)
    done(clone, "compact")
    assert_rows(clone, expected)
    live = DeltaLog(open_store(str(clone))).snapshot().adds()
    assert not [add.path for add in live if "://" in add.path]


def test_a_merge_changes_the_clone_alone(clone: Path, tmp_path: Path) -> None:
    source = tmp_path / "in.parquet"
    new: Rows = ((1, 1, 1), (99, 4, 9))
    pq.write_table(table(new), source)
    words = ("--from", source, "--on", "t.id = s.id", "--update-all", "--insert-all", VECTORS)
    done(clone, "merge", *words)
    assert_rows(clone, join(without(START, id_in([1])), new))


def test_sorting_and_rewriting_read_the_source(clone: Path) -> None:
    done(clone, "compact")
    done(clone, "sort", "v")
    assert_rows(clone, START)


def test_cleaning_deletes_nothing_outside(clone: Path) -> None:
    """Everything is old, and no longer named: in the folder of the clone it goes."""
    done(clone, "delete", "--where", "true", VECTORS)
    result = tandem("clean", clone)
    assert result.exit_code == 0, result.stderr
    log = DeltaLog(open_store(str(clone)))
    opened = Table(log.store, log, "the clone")
    rules = CleaningRules(0, staging_ms=DAY_MS, dead_ms=DAY_MS)
    garbage = clean(opened, rules, options=CleaningOptions()).garbage
    assert not [each for each in garbage if "source" in each.file.path]
    assert_rows(clone, ())


def test_a_clone_below_its_source_is_cleaned_alone(clone: Path) -> None:
    """A file that the source has removed is kept, if it looks like one of the clone's."""
    inner = clone.parent / "source" / "_inner"
    try:
        shutil.copytree(clone, inner)
        log = DeltaLog(open_store(str(inner)))
        rules = CleaningRules(0, staging_ms=DAY_MS, dead_ms=DAY_MS)
        opened = Table(log.store, log, "the clone")
        assert clean(opened, rules, options=CleaningOptions()).garbage == ()
    finally:
        shutil.rmtree(inner)


@pytest.mark.part(2)
@pytest.mark.parametrize("ours", ["compact", "delete"])
def test_spark_reads_and_changes_what_we_left(
    clone: Path, delta_spark: SparkSession, ours: str
) -> None:
    where = ("--where", "id = 21", VECTORS) if ours == "delete" else ()
    done(clone, ours, *where)
    expected = without(START, id_in([21])) if ours == "delete" else START
    shown = delta_spark.read.format("delta").load(str(clone)).select("id", "k", "v")
    assert tuple(sorted((r.id, r.k, r.v) for r in shown.collect())) == expected
    delta_spark.sql(f"INSERT INTO delta.`{clone}` VALUES (77, 2, 7700)")
    assert_rows(clone, join(expected, rows([77])))


def test_a_clone_is_the_source_of_a_merge_by_the_same_option(clone: Path, tmp_path: Path) -> None:
    own = JobTable(
        location=tmp_path.as_uri(), version=0, table_id="", schema_string="{}",
        partition_columns=(), configuration={},
        allowed_prefixes=((clone.parent / "source").as_uri(),),
    )  # fmt: skip
    job = IngestJob(source_format="Delta", source_location=clone.as_uri(), target_file_size=1)
    found = delta_files(own, job, None)
    assert len(found.inputs) == 4
    assert found.table.allowed_prefixes == own.allowed_prefixes
    with pytest.raises(LocationNotAllowed):
        delta_files(own.model_copy(update={"allowed_prefixes": ()}), job, None)


# In a cluster


def test_an_administrator_bounds_where_clones_read() -> None:
    def lake(source: str) -> LakeTable:
        spec = {"location": "s3://lake/team-a/t", "storage": {"cloneSources": [source]}}
        found = parse(document(spec, namespace="team-a"))
        assert isinstance(found, LakeTable)
        return found

    policy = LocationPolicy(("team-a=s3://lake/team-a",))
    assert policy.check(lake("s3://lake/team-a/other")) == ("s3://lake/team-a",)
    for outside in ("s3://lake/team-b/t", "s3://lake/team-a2", "file:///etc"):
        with pytest.raises(LocationNotAllowed) as refused:
            policy.check(lake(outside))
        assert refused.value.field == "spec.storage.cloneSources[0]"
        assert "allowedLocations" in refused.value.remedy
    assert LocationPolicy().check(lake("s3://anywhere/t")) == ()
