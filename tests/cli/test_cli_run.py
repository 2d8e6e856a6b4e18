"""`tandem run` and `plan`: exit codes, outputs, what is checked before anything starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import yaml

from cli.invoke import Tandem
from tandem.errors import StorageError
from tandem.operations import runner
from tandem.spec import (
    AnyResource,
    LakeTable,
    OperationStatus,
    ResourceOutcome,
    ResourceStatus,
    StatusObserver,
    TableStatus,
)
from tandem.spec.status import (
    Condition,
    ConditionType,
    OperationResult,
    Phase,
    Plan,
    Progress,
    Reconciled,
    RowsAffected,
)

RESOURCES = """
apiVersion: tandem.dev/v1alpha1
kind: LakeTable
metadata: {name: flights}
spec: {location: "file:///data/flights"}
---
apiVersion: tandem.dev/v1alpha1
kind: TableCompaction
metadata: {name: tidy}
spec: {tableRef: {name: flights}, type: Minor}
---
apiVersion: tandem.dev/v1alpha1
kind: TableUpdate
metadata: {name: late}
spec:
  tableRef: {name: flights}
  delete: {where: "a = 1"}
  dependsOn: [{kind: TableCompaction, name: tidy}]
"""


class FakeEngine:
    """Ends operations as the test sets, and records what was requested."""

    def __init__(self) -> None:
        self.phases: dict[str, Phase] = {}
        self.asked: list[str] = []
        self.arguments: dict[str, object] = {}
        self.before_end: Callable[[threading.Event], None] = lambda _: None

    def status(self, resource: AnyResource) -> ResourceStatus:
        if isinstance(resource, LakeTable):
            return TableStatus(phase=Phase.SUCCEEDED, version=4, files=3, bytes=4096, segments=3)
        phase = self.phases.get(resource.name, Phase.SUCCEEDED)
        good = phase in (Phase.SUCCEEDED, Phase.SUPERSEDED)
        return OperationStatus(
            phase=phase,
            attempt=1,
            conditions=(
                Condition(
                    type=ConditionType.SUCCEEDED,
                    status="True" if good else "False",
                    reason="Committed" if good else "JobFailed",
                    message="as [wished]" if good else "the job died",
                    last_transition_time="2026-11-21T10:00:00Z",
                ),
            ),
            plan=Plan(read_version=4, inputs=3, input_bytes=4096, segments=("0", "1", "2")),
            result=OperationResult(
                version=5,
                files_added=1,
                files_removed=3,
                bytes_added=1,
                bytes_removed=4096,
                rows_affected=RowsAffected(deleted=7),
                segments=("0.1",),
                reconciled=Reconciled(commits_seen=1, deletes_remapped=2),
            )
            if good
            else None,
        )

    def run(
        self,
        resources: Sequence[AnyResource],
        options: runner.RunOptions,
        *,
        observer: StatusObserver,
        cancel: threading.Event,
    ) -> list[ResourceOutcome]:
        self.asked = [resource.id for resource in resources]
        self.arguments = {"parallel": options.parallel, "again": options.again}
        for resource in resources:
            if not isinstance(resource, LakeTable):
                progress = Progress(percent=50, summary="1/2 files")
                running = OperationStatus(phase=Phase.RUNNING, attempt=2, progress=progress)
                observer(resource, running)
        self.before_end(cancel)
        outcomes = [ResourceOutcome(resource, self.status(resource)) for resource in resources]
        for outcome in outcomes:
            observer(outcome.resource, outcome.status)
        return outcomes

    def plan(self, resources: Sequence[AnyResource], _: runner.RunOptions) -> list[ResourceOutcome]:
        return [ResourceOutcome(resource, self.status(resource)) for resource in resources]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    fake = FakeEngine()
    monkeypatch.setattr(runner, "run", fake.run)
    monkeypatch.setattr(runner, "plan", fake.plan)
    return fake


@pytest.fixture
def files(tmp_path: Path) -> Path:
    path = tmp_path / "resources.yaml"
    path.write_text(RESOURCES)
    return path


@pytest.mark.parametrize(
    ("phases", "code"),
    [
        ({}, 0),
        ({"tidy": Phase.SUPERSEDED}, 0),
        ({"late": Phase.SUSPENDED}, 0),
        ({"late": Phase.FAILED}, 1),
    ],
)
def test_exit_codes_follow_the_outcome_of_operations(
    tandem: Tandem, fake: FakeEngine, files: Path, phases: dict[str, Phase], code: int
) -> None:
    fake.phases = phases
    assert tandem("run", "-f", files).exit_code == code


def test_json_is_one_list_of_resources_with_status_and_nothing_else(
    tandem: Tandem, fake: FakeEngine, files: Path
) -> None:
    result = tandem("run", "-f", files, "-o", "json")
    found = json.loads(result.stdout)
    given = list(yaml.safe_load_all(RESOURCES))
    assert [{k: v for k, v in item.items() if k != "status"} for item in found] == given
    assert found[1]["status"]["phase"] == "Succeeded"
    assert found[1]["status"]["result"] == {
        "version": 5,
        "filesAdded": 1,
        "filesRemoved": 3,
        "bytesAdded": 1,
        "bytesRemoved": 4096,
        "rowsAffected": {"updated": 0, "deleted": 7, "inserted": 0},
        "segments": ["0.1"],
        "reconciled": {
            "commitsSeen": 1,
            "deletesRemapped": 2,
            "rowsMasked": 0,
            "rowsEvaluated": 0,
            "binsDropped": 0,
            "rounds": 0,
        },
    }
    assert result.stderr.splitlines() == [
        "TableCompaction/tidy: Succeeded, version 5",
        "TableUpdate/late: Succeeded, version 5",
    ]


def test_verbose_prints_each_phase(tandem: Tandem, fake: FakeEngine, files: Path) -> None:
    lines = tandem("-v", "run", "-f", files).stderr.splitlines()
    assert "TableCompaction/tidy: Running 1/2 files, attempt 2" in lines
    assert "TableCompaction/tidy: Succeeded, version 5" in lines


def test_yaml_holds_the_same_as_json(tandem: Tandem, fake: FakeEngine, files: Path) -> None:
    as_json = tandem("run", "-f", files, "-o", "json").stdout
    assert yaml.safe_load(tandem("run", "-f", files, "-o", "yaml").stdout) == json.loads(as_json)


def test_the_table_names_what_happened(tandem: Tandem, fake: FakeEngine, files: Path) -> None:
    fake.phases = {"late": Phase.FAILED}
    out = tandem("run", "-f", files, "-q").stdout
    assert "as [wished]" in out
    assert "JobFailed: the job died" in out
    assert "7 deleted, 2 deletes replayed" in out


def test_errors_are_printed_below_the_table(tandem: Tandem, fake: FakeEngine, files: Path) -> None:
    fake.phases = {"late": Phase.FAILED}
    lines = tandem("run", "-f", files, "-q").stdout.splitlines()
    [row] = [line for line in lines if "JobFailed, see below" in line]
    index = lines.index("TableUpdate/late: JobFailed: the job died")
    assert index > lines.index(row)
    # Without --only, what has succeeded beside it would be done once more.
    again = f"tandem run -f {files} --again --only TableUpdate/late"
    remedy = f"Read the log that the message names, then `{again}`."
    assert lines[index + 1].strip() == f"remedy:   {remedy}"


def test_quiet_prints_no_progress(tandem: Tandem, fake: FakeEngine, files: Path) -> None:
    assert tandem("run", "-f", files, "-q", "-o", "json").stderr == ""


def test_options_reach_the_engine(tandem: Tandem, fake: FakeEngine, files: Path) -> None:
    tandem("run", "-f", files, "--parallel", "3", "--again")
    assert fake.arguments == {"parallel": 3, "again": True}


def test_only_takes_the_table_along_and_forgets_dependencies(
    tandem: Tandem, fake: FakeEngine, files: Path
) -> None:
    found = json.loads(
        tandem("run", "-f", files, "--only", "TableUpdate/late", "-o", "json").stdout
    )
    assert fake.asked == ["LakeTable/flights", "TableUpdate/late"]
    assert found[1]["spec"]["dependsOn"] == []


@pytest.mark.parametrize("only", ["late", "TableUpdate/none", "TableUpdate/"])
def test_only_something_that_is_not_there(
    tandem: Tandem, fake: FakeEngine, files: Path, only: str
) -> None:
    result = tandem("run", "-f", files, "--only", only)
    assert result.exit_code == 2
    assert "--only" in result.stderr
    assert fake.asked == []


@pytest.mark.parametrize(
    "text",
    [
        "kind: [",
        RESOURCES.replace("type: Minor", "type: Minr"),
        RESOURCES.replace("name: flights}, type", "name: flight}, type"),
        RESOURCES.replace("type: Minor", "type: Minor, lockMode: Alone"),
        "",
    ],
)
@pytest.mark.parametrize("command", ["run", "plan"])
def test_wrong_input_starts_nothing(
    tandem: Tandem, fake: FakeEngine, text: str, command: str
) -> None:
    result = tandem(command, "-f", "-", "-o", "json", input_=text)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Error (" in result.stderr
    assert fake.asked == []


@pytest.mark.parametrize(
    "words", [[], ["-f"], ["-f", "x", "-o", "xml"], ["-f", "x", "--parallel", "-1"]]
)
def test_wrong_options(tandem: Tandem, fake: FakeEngine, words: list[str]) -> None:
    assert tandem("run", *words).exit_code == 2


def test_an_error_of_the_store_is_a_failure_and_no_traceback(
    tandem: Tandem, fake: FakeEngine, files: Path
) -> None:
    def fail(_: threading.Event) -> None:
        raise StorageError("no answer", resource="s3://b/t", remedy="Try again")

    fake.before_end = fail
    result = tandem("run", "-f", files)
    assert result.exit_code == 1
    assert "Error (StorageError): s3://b/t: no answer" in result.stderr
    assert "remedy:   Try again" in result.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_asks_the_engine_to_stop_and_reports_what_committed(
    tandem: Tandem, fake: FakeEngine, files: Path, number: signal.Signals
) -> None:
    def interrupt(cancel: threading.Event) -> None:
        os.kill(os.getpid(), number)
        assert cancel.wait(100)

    fake.before_end = interrupt
    before = signal.getsignal(number)
    result = tandem("run", "-f", files, "-o", "json")
    assert result.exit_code == 130
    assert json.loads(result.stdout)[1]["status"]["result"]["version"] == 5
    assert signal.getsignal(number) is before


def test_automatic_compaction_is_noted_to_need_the_operator(
    tandem: Tandem, fake: FakeEngine, files: Path
) -> None:
    files.write_text(
        RESOURCES.replace('flights"}', 'flights", compaction: {minor: {enabled: true}}}')
    )
    result = tandem("run", "-f", files)
    assert result.exit_code == 0
    assert f"`tandem maintain {files}` does once" in result.stderr


def test_plan_names_inputs_and_segments(tandem: Tandem, fake: FakeEngine, files: Path) -> None:
    result = tandem("plan", "-f", files)
    assert result.exit_code == 0
    assert "3 files, 4.0 KiB" in result.stdout
    assert "0, 1, 2" in result.stdout
    # That engine has recorded results already.
    assert "TableCompaction/tidy: Succeeded already, as" in result.stdout
    repeat = f"tandem run -f {files} --again --only TableCompaction/tidy"
    assert repeat in " ".join(result.stdout.split())


def test_help_imports_no_heavy_module() -> None:
    code = (
        "import sys\nfrom tandem.cli.app import app\n"
        "heavy = {'pyarrow', 'pyspark', 'obstore', 'numpy', 'tandem.operations'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert found.stdout.strip() == "[]"


def test_log_json_writes_lines_of_json_to_standard_error(
    tandem: Tandem, fake: FakeEngine, files: Path
) -> None:
    import structlog

    fake.before_end = lambda _: structlog.get_logger().info("half way", files=1)
    result = tandem("--log-json", "run", "-f", files, "-o", "json")
    (line,) = result.stderr.splitlines()
    assert json.loads(line)["event"] == "half way"
