"""Stores that refuse: a full volume, no permission, wrong credentials."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import pytest
from deltalake import write_deltalake

from badinput.bad_input import BadLake, assert_mentions, compaction, document, tandem, update
from support.jobs.quick_jobs import QuickJobs
from support.lake import rows as model
from support.lake.s3 import S3Server
from tandem.operations import runner as engine
from tandem.operations.ports import Ports
from tandem.storage.local import LocalWriter

QUICK = """
import sys
from badinput.bad_input import tandem
from support.jobs.quick_jobs import QuickJobs
from tandem.operations import runner as engine
from tandem.operations.ports import Ports
engine.local_ports = lambda: Ports(jobs=QuickJobs())
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


def test_wrong_credentials(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "local_ports", lambda: Ports(jobs=QuickJobs()))
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
