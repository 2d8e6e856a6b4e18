"""The driver's side of control files: truncated ones refused, Spark's errors translated."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from support.jobs import job_files as jobs
from tandem.errors import (
    DataFileMissing,
    JobFailed,
    ManifestInvalid,
    ObjectNotFound,
    OutputMissing,
    StatementFailed,
)
from tandem.jobs.formats import RoundRequest, StatementJob
from tandem.jobs.results import JobResult
from tandem.spark.runtime.control import Control, encode, main, open_job, translate


@pytest.fixture
def job(tmp_path: Path) -> Control:
    write_deltalake(str(tmp_path), pa.table({"id": [1]}))
    store, snapshot = jobs.snapshot_of(tmp_path)
    inputs = jobs.input_files(store, snapshot)
    return jobs.control(
        store, snapshot, StatementJob(where="true", inputs=inputs, target_file_size=1)
    )


def spec_path(job: Control) -> str:
    return job.path("job.json")


def test_a_complete_job_is_opened(job: Control) -> None:
    assert open_job(job.store.location, spec_path(job), {}).spec == job.spec


@pytest.mark.parametrize("part", [0.0, 0.3, 0.99])
def test_a_cut_off_job_is_refused_whole(
    job: Control, part: float, capsys: pytest.CaptureFixture[str]
) -> None:
    data = job.store.get(spec_path(job))
    job.store.put(spec_path(job), data[: int(len(data) * part)])
    with pytest.raises(ManifestInvalid, match=r"job\.json"):
        open_job(job.store.location, spec_path(job), {})
    code = main(
        lambda _: pytest.fail("it ran"),
        ["--location", job.store.location, "--spec", spec_path(job)],
    )
    assert code == 1
    message = capsys.readouterr().err
    assert "JobSpec cannot be read" in message
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [(b'"formatVersion":1', b'"formatVersion":2'), (b'"attempt":1', b'"attempt":1,"more":0')],
)
def test_a_job_of_another_version_is_refused(job: Control, old: bytes, new: bytes) -> None:
    data = job.store.get(spec_path(job))
    assert old in data
    job.store.put(spec_path(job), data.replace(old, new))
    with pytest.raises(ManifestInvalid):
        open_job(job.store.location, spec_path(job), {})


def test_a_job_that_is_not_there_is_named(job: Control) -> None:
    with pytest.raises(ObjectNotFound, match="gone"):
        open_job(job.store.location, "gone/job.json", {})


def test_a_request_of_another_attempt_is_refused(job: Control) -> None:
    other = RoundRequest(
        operation_id=jobs.OPERATION, attempt=2, round=1, table_version=0, inputs=()
    )
    job.store.put(job.round_path(1, "request.json"), other.model_dump_json(by_alias=True).encode())
    with pytest.raises(ManifestInvalid, match="another attempt"):
        job.request(1)
    assert job.request(2) is None


def test_a_driver_from_before_an_upgrade_can_read_what_statements_ask() -> None:
    """It knows nothing of parts, and refuses fields that it does not know."""
    asked = RoundRequest(
        operation_id=jobs.OPERATION, attempt=1, round=1, table_version=0, inputs=()
    )
    part = asked.model_copy(update={"part": True})
    assert b"part" not in encode(asked)
    for request in (asked, part):
        assert RoundRequest.model_validate_json(encode(request)) == request


def test_every_log_line_of_a_driver_names_its_operation(
    job: Control, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--location", job.store.location, "--spec", spec_path(job)]
    assert main(lambda _: None, arguments) == 0

    def fails(_: Control) -> None:
        raise OutputMissing("nothing was written")

    assert main(fails, arguments) == 1
    lines = capsys.readouterr().err.splitlines()
    whose = f"tandem operation={job.spec.operation_id} attempt={job.spec.attempt}: "
    assert [line.removeprefix(whose) for line in lines] == [
        f"{job.spec.job.kind} of version {job.spec.table.version} begins",
        "answered",
        f"{job.spec.job.kind} of version {job.spec.table.version} begins",
        "nothing was written",
    ]


def test_only_the_first_result_counts(job: Control) -> None:
    first = JobResult(operation_id=jobs.OPERATION, attempt=1, rows_read=1)
    assert job.publish(first)
    assert not job.publish(first.model_copy(update={"rows_read": 2}))
    assert jobs.result(job) == first


class Raised(Exception):
    """Stands for what PySpark or Py4J raise; only their text is looked at."""


def test_no_message_suggests_a_setting_that_jobs_pin() -> None:
    text = (
        "[DIVIDE_BY_ZERO] Division by zero. Use `try_divide` to return NULL instead. If necessary "
        'set "spark.sql.ansi.enabled" to "false" to bypass this error. SQLSTATE: 22012'
    )
    message = str(translate(Raised(text)))
    assert "try_divide" in message
    assert "ansi" not in message


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        (
            "[DIVIDE_BY_ZERO] Division by zero. Use `try_divide`. SQLSTATE: 22012\n== SQL ==\n1/0",
            StatementFailed,
            "DIVIDE_BY_ZERO",
        ),
        (
            "An error occurred while calling o93.save.\n: org.apache.spark.SparkException: Job "
            "aborted\n\tat org.apache\nCaused by: java.lang.ArithmeticException: long overflow\n"
            "\tat java.base/java.lang.Math.multiplyExact(Math.java:1004)",
            StatementFailed,
            "long overflow",
        ),
        (
            "Caused by: java.time.DateTimeException: Invalid value for Year\n\tat x",
            StatementFailed,
            "Invalid value for Year",
        ),
        (
            "PythonException: tandem.errors.DataFileMissing: a data file listed in the log "
            "does not exist: x.parquet\n",
            DataFileMissing,
            "x.parquet",
        ),
        (
            "[DUPLICATED_MAP_KEY] Duplicate map key 1 was found, please check the input data.\nIf "
            "you want to remove the duplicated keys, you can set "
            '"spark.sql.mapKeyDedupPolicy" to "LAST_WIN" so that the key inserted at last takes '
            "precedence. SQLSTATE: 23505",
            StatementFailed,
            "Duplicate map key 1 was found, please check the input data (found: [DUPLICATED",
        ),
        ("[UNABLE_TO_ACQUIRE_MEMORY] no memory SQLSTATE: 53200", JobFailed, "no memory"),
        ("java.io.IOException: No space left on device", JobFailed, "No space"),
    ],
)
def test_errors_of_spark_become_errors_of_tandem(
    text: str, kind: type[Exception], message: str
) -> None:
    found = translate(Raised(text))
    assert type(found) is kind
    assert message in str(found)
