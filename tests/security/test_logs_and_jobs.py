"""What a log and the files of a job lead to: nothing outside of the table, but below the prefixes
of its namespace. Both are in the bucket, where others write who have no say in the cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.jobs import quick_lake
from support.jobs.quick_lake import QuickLake
from tandem.delta.dv import load
from tandem.delta.log.codec import encode_action
from tandem.errors import LocationNotAllowed, ManifestInvalid, TandemError
from tandem.jobs.formats import AnyJob, IngestJob, JobSpec, JobTable, MergeJob
from tandem.operations.execute import ExecutionOptions, finish, open_session
from tandem.spark.runtime.control import encode, open_job
from tandem.spark.runtime.datasource import get_work
from tandem.storage import open_store

# What the log says


def hostile_paths(lake: QuickLake) -> list[str]:
    beside = lake.path.parent / "beside.parquet"
    data = (lake.path / lake.first_add.logged_path).read_bytes()
    beside.write_bytes(data)
    (lake.path / "link.parquet").symlink_to(beside)
    return [
        str(beside),
        beside.as_uri(),
        "../beside.parquet",
        "%2e%2e/beside.parquet",
        "x/../../beside.parquet",
        "link.parquet",
        "s3://lake/team-b/x.parquet",
        "s3a://lake/team-b/x.parquet",
        "file:///etc/passwd",
        f"file://{lake.path}2/x.parquet",
    ]


def live(lake: QuickLake) -> set[str]:
    return {add.logged_path for add in lake.log.snapshot().adds()}


@pytest.mark.parametrize("number", range(10))
def test_the_log_names_no_file_elsewhere(tmp_path: Path, number: int) -> None:
    lake = quick_lake.make(tmp_path, 2)
    path = hostile_paths(lake)[number]
    add = encode_action(lake.first_add)
    lake.log_raw({"add": {**add["add"], "path": path}})
    before = live(lake)
    status = lake.run(lake.compaction("Major"))
    assert status.phase == "Failed"
    assert live(lake) == before
    # The job says no, too, whatever the engine thought of it.
    with pytest.raises(TandemError):
        lake.store.get(path)
    allowed = open_store(lake.location, allowed_prefixes=["s3://lake/team-a", lake.location])
    with pytest.raises(TandemError):
        allowed.get(path)


@pytest.mark.parametrize("path", ["/etc/passwd", "file:///etc/passwd", "s3://lake/team-b/x.bin"])
def test_a_deletion_vector_outside_of_the_table_is_refused(tmp_path: Path, path: str) -> None:
    lake = quick_lake.make(tmp_path, 1)
    vector = {"storageType": "p", "pathOrInlineDv": path, "offset": 1, "sizeInBytes": 36,
              "cardinality": 1}  # fmt: skip
    add = encode_action(lake.first_add)
    lake.log_raw({"add": {**add["add"], "deletionVector": vector}})
    [found] = [a.deletion_vector for a in lake.log.snapshot().adds() if a.deletion_vector]
    with pytest.raises(LocationNotAllowed):
        load(lake.store, found)
    before = live(lake)
    assert lake.run(lake.compaction("Major")).phase == "Failed"
    assert live(lake) == before


def test_a_shallow_clone_reads_below_the_namespaces_prefix(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path, 1)
    beside = lake.path.parent / "beside.parquet"
    beside.write_bytes(b"x")
    for prefix in (lake.path.parent.as_uri(), "file://", "file:///"):
        store = open_store(lake.location, allowed_prefixes=[prefix])
        assert store.get(str(beside)) == b"x"
        with pytest.raises(LocationNotAllowed):
            store.put(str(beside), b"y")


# The arguments of a job


def job(lake: QuickLake, *, merges: bool = False, **changes: Any) -> tuple[str, JobSpec]:
    """A job's file as the engine writes it."""
    folder = "_tandem/operations/o/attempts/1"
    source = changes.pop("source", f"{lake.location}/in.parquet")
    what: AnyJob = IngestJob(source_format="Parquet", source_location=source, target_file_size=1)
    if merges:
        what = MergeJob(
            source_format="Parquet", source_location=source, target_file_size=1,
            on="true", clauses=(), inputs=(),
        )  # fmt: skip
    job_table = JobTable(
        location=lake.location,
        version=0,
        table_id="",
        schema_string="",
        partition_columns=(),
        configuration={},
        storage_options={},
        allowed_prefixes=(lake.location,),
    )
    spec_ = JobSpec(
        operation_id="o",
        attempt=1,
        table=job_table.model_copy(update=changes),
        data_prefix="o-1",
        control_prefix=folder,
        job=what,
    )
    path = f"{folder}/job.json"
    lake.store.put(path, encode(spec_))
    return path, spec_


@pytest.mark.parametrize("merges", [False, True])
def test_the_arguments_of_a_job_override_its_file(tmp_path: Path, merges: bool) -> None:
    """A user with access to the bucket, and none to the cluster, may change the file."""
    lake = quick_lake.make(tmp_path, 1)
    allowed = (lake.location,)
    path, good = job(lake, merges=merges)
    assert open_job(lake.location, path, {}, allowed).spec == good
    for changes, error in (
        ({"source": "file:///var/run/secrets/kubernetes.io/serviceaccount"}, LocationNotAllowed),
        ({"source": f"{lake.location}2/in"}, LocationNotAllowed),
        ({"location": "file:///etc"}, ManifestInvalid),
        ({"allowed_prefixes": ("file:///",)}, ManifestInvalid),
        ({"allowed_prefixes": ()}, ManifestInvalid),
        ({"storage_options": {"endpoint": "http://evil.example"}}, ManifestInvalid),
    ):
        path, _ = job(lake, merges=merges, **changes)
        with pytest.raises(error):
            open_job(lake.location, path, {}, allowed)
    with pytest.raises(LocationNotAllowed):
        open_job(lake.location, path, {}, ("s3://lake/team-a",))


def test_a_worker_accepts_only_what_its_driver_wrote(tmp_path: Path) -> None:
    lake = quick_lake.make(tmp_path, 1)
    lake.store.put("_tandem/work.json", b'{"location": "file:///etc"}')
    options = {
        "location": lake.location,
        "storage": "{}",
        "work": "_tandem/work.json",
        "digest": "0" * 64,
    }
    with pytest.raises(ManifestInvalid):
        get_work(options)


@pytest.mark.parametrize(
    "source", ["file:///var/run/secrets/kubernetes.io/serviceaccount/token", "file:///etc/passwd"]
)
@pytest.mark.parametrize("kind", ["TableIngest", "TableUpdate"])
def test_sources_outside_the_allowed_locations_are_refused(
    tmp_path: Path, source: str, kind: str
) -> None:
    lake = quick_lake.make(tmp_path, 1)
    ours = replace(lake.table(), allowed_prefixes=(tmp_path.as_uri(),))
    version, ports = lake.version, lake.ports()
    body: dict[str, Any] = {"source": {"format": "Parquet", "location": source}}
    field = "spec.source.location"
    if kind == "TableUpdate":
        body = {"merge": {**body, "on": "t.id = s.id", "whenMatched": [{"delete": {}}]}}
        field = "spec.merge.source.location"
    resource = lake.resource(kind, body)
    status = finish(open_session(resource, ours, ports, ExecutionOptions()), resource, ports)
    assert status.phase == "Failed"
    assert status.conditions[0].reason == "LocationNotAllowed"
    assert f"{resource.id}.{field}:" in status.conditions[0].message
    assert lake.version == version
