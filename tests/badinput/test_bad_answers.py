"""Stores that answer wrongly, are full, or refuse."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable, write_deltalake

from badinput.bad_input import BadLake, assert_mentions, compaction, document, tandem, update
from support.jobs.quick_jobs import QuickJobs
from support.lake import rows as model
from support.lake.s3 import S3Server
from tandem.jobs.runner import JobPhase, JobRequest, JobStatus
from tandem.operations import runner as engine
from tandem.operations.ports import Ports
from tandem.operations.session.job_control import FileJobs
from tandem.storage.local import LocalWriter

# Jobs that die, hang or answer nonsense: no answer is believed, the table stays as it was.


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
        monkeypatch.setattr(engine, "local_ports", lambda: Ports(jobs=FileJobs(jobs)))
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
    monkeypatch.setattr(engine, "local_ports", lambda: Ports(jobs=FileJobs(jobs)))
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


# Stores that refuse: a full volume, no permission, wrong credentials.


QUICK = """
import sys
from badinput.bad_input import tandem
from support.jobs.quick_jobs import QuickJobs
from tandem.operations import runner as engine
from tandem.operations.ports import Ports
from tandem.operations.session.job_control import FileJobs
engine.local_ports = lambda: Ports(jobs=FileJobs(QuickJobs()))
{before}
ended = tandem("run", "-f", sys.argv[1])
adopted = ended.status("LakeTable")["phase"] == "Succeeded"
condition = ended.condition("TableCompaction" if adopted else "LakeTable")
print(ended.code, condition["reason"], condition["message"])
"""


def in_a_process(lake: BadLake, before: str, **options: Any) -> str:
    """`tandem run` where the operating system itself says no; `code reason message`."""
    file = lake.write(lake.lake_table(), compaction(backoffLimit=0))
    root = Path(__file__).resolve().parents[2]
    found = subprocess.run(
        [sys.executable, "-c", QUICK.format(before=textwrap.dedent(before)), str(file)],
        env={**os.environ, "PYTHONPATH": f"{root / 'operator'}:{root / 'tests'}"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        **options,
    )
    assert found.returncode == 0, found.stderr
    return str(found.stdout)


def test_a_full_disk(tmp_path: Path) -> None:
    """The kernel's own refusal to write a large file, in a process of its own: files may have
    2 KiB, which control files need, and data files exceed."""
    lake = BadLake(tmp_path).make()
    limit = f"""
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2500, {resource.RLIM_INFINITY}))
    """
    with lake.unharmed():
        output = in_a_process(lake, limit)
    assert_mentions(output, "1 StorageFull", "found:", "expected: free space", "Free some space")


@pytest.mark.part(3)
@pytest.mark.parametrize("nth", range(1, 17))
def test_the_volume_is_full_at_any_write(
    nth: int, lake: BadLake, jobs: QuickJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the n-th write on there is no room, until the operation has ended; then the same
    resource succeeds, since a full disk is nothing to remember."""
    import errno

    real = LocalWriter._append
    state = {"writes": 0, "full": True}

    def append(self: LocalWriter, data: memoryview) -> None:
        state["writes"] += 1
        if state["full"] and state["writes"] >= nth:
            error = OSError(errno.ENOSPC, "No space left on device")
            raise self._store._translate(error, self._path, writing=True)
        real(self, data)

    monkeypatch.setattr(LocalWriter, "_append", append)
    before = lake.shown()
    ended = lake.run(update())
    assert lake.shown() == before
    assert ended.code == 1
    # Adoption tries the store first, so that the first few refusals are the table's.
    adopted = ended.status("LakeTable")["phase"] == "Succeeded"
    condition = ended.condition("TableUpdate" if adopted else "LakeTable")
    assert condition["reason"] == "StorageFull"
    assert_mentions(
        condition["message"], "found: No space left", "expected: free space", "Free some"
    )

    state["full"] = False
    again = lake.run(update())
    assert again.code == 0, again.documents
    expected = tuple(sorted((i, k, v + 15 if k == 1 else v) for i, k, v in before))
    assert lake.shown() == expected
    assert lake.unreachable() == set()


def test_no_permission_on_the_table(lake: BadLake, tmp_path: Path) -> None:
    """As a user that does not own the folder. Root may write anywhere, so root becomes the user
    `nobody`; any other user removes its own permission."""
    for folder in [tmp_path, *tmp_path.parents]:
        if folder == Path(tempfile.gettempdir()):
            break
        folder.chmod(0o755)
    for path in [lake.path, *lake.path.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    # A run on another table first loads the files that the user `nobody` may not read.
    other = BadLake(tmp_path / "other").make()
    first = other.write(other.lake_table(), compaction())
    become = f"""
        import os
        assert tandem("run", "-f", {str(first)!r}).code == 0
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
    """
    before = lake.bytes()
    output = in_a_process(lake, become)
    assert lake.bytes() == before
    assert_mentions(
        output, "1 AccessDenied", lake.path.as_uri(), "found: Permission denied",
        "expected: permission to write", "Give this user",
    )  # fmt: skip
    for path in [lake.path, *lake.path.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)


def on_s3(server: S3Server) -> tuple[str, dict[str, Any]]:
    location = server.fresh_location()
    for load in range(2):
        write_deltalake(
            location,
            model.table(model.rows(range(load * 5, load * 5 + 5))),
            mode="append",
            storage_options=server.storage_options,
        )
    table = document(
        "LakeTable", "lake", location=location, storage={"options": dict(server.options)}
    )
    return location, table


def test_wrong_credentials_are_refused_and_never_repeated(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "local_ports", lambda: Ports(jobs=FileJobs(QuickJobs())))
    _, table = on_s3(s3_server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    ended = tandem("run", "-f", BadLake(tmp_path).write(table, compaction()))
    assert ended.code == 1
    condition = ended.condition("LakeTable")
    assert condition["reason"] == "AccessDenied"
    assert_mentions(condition["message"], "s3://", "found:", "expected:")
    assert "not-the-secret" not in str(ended)
    assert s3_server.secret_key not in str(ended)
