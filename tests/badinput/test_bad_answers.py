"""Jobs that die, hang or answer nonsense: no answer is believed, the table stays as it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

from badinput.bad_input import BadLake, assert_mentions, compaction, update
from support.jobs.quick_jobs import QuickJobs
from tandem.jobs.runner import JobPhase, JobRequest, JobStatus
from tandem.operations import runner as engine
from tandem.operations.ports import Ports

Act = Callable[[Path], None]
OPERATIONS = {"compaction": compaction(backoffLimit=0), "update": update()}
OPERATIONS["update"]["spec"]["backoffLimit"] = 0


@dataclass
class BadJobs(QuickJobs):
    """Does the work, then `act` on the folder of the attempt, as another program might."""

    root: Path = Path()
    act: Act | None = None
    times: int = 99
    phase: JobPhase | None = None

    def start(self, request: JobRequest) -> None:
        super().start(request)
        self.times -= 1
        if self.act is not None and self.times >= 0:
            self.act(self.root / Path(request.spec_path).parent)

    def status(self, name: str) -> JobStatus:
        if self.phase is not None:
            return JobStatus(self.phase, "exit code 137", "the-log")
        return super().status(name)


@dataclass
class HangingJobs:
    """Starts, and never reports anything."""

    stopped: list[str] = field(default_factory=list)

    def start(self, request: JobRequest) -> None: ...

    def status(self, _name: str) -> JobStatus:
        return JobStatus(JobPhase.RUNNING)

    def stop(self, name: str) -> None:
        self.stopped.append(name)


Use = Callable[..., BadJobs]


@pytest.fixture
def use(lake: BadLake, monkeypatch: pytest.MonkeyPatch) -> Use:
    def made(act: Act | None = None, **more: Any) -> BadJobs:
        jobs = BadJobs(root=lake.path, act=act, **more)
        monkeypatch.setattr(engine, "local_ports", lambda: Ports(jobs=jobs))
        return jobs

    return made


def result_of(attempt: Path) -> Path:
    return attempt / "rounds" / "0" / "result.json"


def change_result(folder: Path, **changes: Any) -> None:
    result = json.loads(result_of(folder).read_text())
    result_of(folder).write_text(json.dumps({**result, **changes}))


def cut_off(attempt: Path) -> None:
    text = result_of(attempt).read_text()
    result_of(attempt).write_text(text[: len(text) // 2])


def no_json(attempt: Path) -> None:
    result_of(attempt).write_bytes(b"\x00\xff")


def of_another_attempt(attempt: Path) -> None:
    change_result(attempt, attempt=7)


def of_another_operation(attempt: Path) -> None:
    change_result(attempt, operationId="feedfeedfeedfeed")


def of_another_format(attempt: Path) -> None:
    change_result(attempt, formatVersion=2)


def names_foreign_files(attempt: Path) -> None:
    result = json.loads(result_of(attempt).read_text())
    for output in result["outputs"]:
        output["path"] = "part-of-another-writer.parquet"
    result_of(attempt).write_text(json.dumps(result))


def sidecar_cut_off(attempt: Path) -> None:
    for file in [*attempt.glob("rounds/0/rowmap-*"), *attempt.glob("rounds/0/matches-*")]:
        file.write_bytes(file.read_bytes()[:-20])


def sidecar_flipped(attempt: Path) -> None:
    for file in [*attempt.glob("rounds/0/rowmap-*"), *attempt.glob("rounds/0/matches-*")]:
        data = file.read_bytes()
        file.write_bytes(data[:40] + bytes([data[40] ^ 1]) + data[41:])


def sidecar_absent(attempt: Path) -> None:
    for file in [*attempt.glob("rounds/0/rowmap-*"), *attempt.glob("rounds/0/matches-*")]:
        file.unlink()


ANSWERS: dict[str, tuple[Act, list[str]]] = {
    "cut off": (cut_off, ["rounds/0/result.json", "found:", "expected:"]),
    "no JSON": (no_json, ["rounds/0/result.json", "found:", "expected:"]),
    "of another attempt": (of_another_attempt, ["rounds/0/result.json", "7", "expected:", "1"]),
    "of another operation": (of_another_operation, ["result.json", "feedfeedfeedfeed"]),
    "of another format": (of_another_format, ["result.json", "ormatVersion", "expected:"]),
    "naming files of others": (
        names_foreign_files,
        ["result.json.outputs.path", "found: part-of-another-writer.parquet", "expected:"],
    ),
    "sidecar cut off": (sidecar_cut_off, ["rounds/0/", "found:", "bytes", "expected:"]),
    "sidecar flipped": (sidecar_flipped, ["rounds/0/", "found:", "SHA-256", "expected:"]),
    "sidecar absent": (sidecar_absent, ["rounds/0/", "no longer exists", "found:", "expected:"]),
}


@pytest.mark.part(4)
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("what", ANSWERS)
def test_inconsistent_job_results_are_refused(
    what: str, operation: str, lake: BadLake, use: Use
) -> None:
    act, parts = ANSWERS[what]
    use(act)
    with lake.unharmed():
        ended = lake.run(OPERATIONS[operation])
    assert ended.code == 1
    condition = ended.condition(OPERATIONS[operation]["kind"])
    assert condition["reason"] == "ManifestInvalid"
    assert_mentions(condition["message"], *parts)


@pytest.mark.parametrize("what", ["cut off", "of another attempt", "sidecar flipped"])
def test_a_later_attempt_succeeds(what: str, lake: BadLake, use: Use) -> None:
    """Once is no misfortune: with `backoffLimit` the work is done again, and counts once."""
    act, _ = ANSWERS[what]
    jobs = use(act, times=1)
    operation = update()
    ended = lake.run(operation)
    assert ended.code == 0
    assert ended.status("TableUpdate")["attempt"] == 2
    assert len(jobs.started) == 2
    expected = tuple((i, k, v + 15 if k == 1 else v) for i, k, v in lake.shown(3))
    assert lake.shown() == tuple(sorted(expected))
    assert lake.unreachable() == set()


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_dead_driver_without_a_result(operation: str, lake: BadLake, use: Use) -> None:
    use(lambda attempt: result_of(attempt).unlink(), phase=JobPhase.FAILED)
    with lake.unharmed():
        ended = lake.run(OPERATIONS[operation])
    assert ended.code == 1
    condition = ended.condition(OPERATIONS[operation]["kind"])
    assert condition["reason"] == "JobFailed"
    assert_mentions(condition["message"], "exit code 137", "the-log")


def test_a_driver_that_hangs_is_stopped_at_the_deadline(
    lake: BadLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = HangingJobs()
    monkeypatch.setattr(engine, "local_ports", lambda: Ports(jobs=jobs))
    with lake.unharmed():
        ended = lake.run(compaction(activeDeadlineSeconds=1))
    assert ended.code == 1
    condition = ended.condition("TableCompaction")
    assert condition["reason"] == "DeadlineExceeded"
    assert_mentions(condition["message"], "activeDeadlineSeconds")
    assert len(jobs.stopped) == 1


# A foreign vacuum ---------------------------------------------------------------------------


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_foreign_vacuum_without_retention(operation: str, lake: BadLake, use: Use) -> None:
    """deltalake's own full vacuum takes the files that no version names yet, just before their
    commit. That is noticed, and the work is done again."""

    def vacuum(_attempt: Path) -> None:
        table = DeltaTable(str(lake.path))
        table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)

    jobs = use(vacuum, times=1)
    resource = {**OPERATIONS[operation], "spec": {**OPERATIONS[operation]["spec"]}}
    resource["spec"]["backoffLimit"] = 2
    before = lake.shown()
    ended = lake.run(resource)
    assert ended.code == 0, ended.documents
    assert len(jobs.started) == 2
    expected = before
    if operation == "update":
        expected = tuple(sorted((i, k, v + 15 if k == 1 else v) for i, k, v in before))
    assert lake.shown() == expected
    assert lake.unreachable() == set()


def test_a_vacuum_during_every_attempt_ends_with_a_clear_message(lake: BadLake, use: Use) -> None:
    def vacuum(_attempt: Path) -> None:
        table = DeltaTable(str(lake.path))
        table.vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=False, full=True)

    use(vacuum)
    with lake.unharmed():
        ended = lake.run(compaction(backoffLimit=0))
    assert ended.code == 1
    condition = ended.condition("TableCompaction")
    assert condition["reason"] == "OutputMissing"
    assert_mentions(condition["message"], "part-", "found:", "expected:", "vacuum")
