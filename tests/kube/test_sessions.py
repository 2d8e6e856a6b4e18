"""What a child has started, and how it ends: with processes that are no children of an operator."""

from __future__ import annotations

import subprocess
from pathlib import Path

from support.waiting import await_that
from tandem.kube.children import process

_WAITS = 'exec 3<&0; (cat <&3 > /dev/null; touch "$0") & exec sleep 600'
"""A leader, and a process that ends with the pipe and says so in a file."""


def started(file: Path) -> subprocess.Popen[bytes]:
    leader = subprocess.Popen(
        ["sh", "-c", _WAITS, str(file)], stdin=subprocess.PIPE, start_new_session=True
    )
    await_that(lambda: len(list(process.session_processes(leader.pid))) >= 3, "its processes")
    return leader


def test_a_session_is_killed_with_all_that_is_in_it(tmp_path: Path) -> None:
    with started(tmp_path / "ended") as leader:
        assert process.memory_of_session(leader.pid) > process._memory_of(leader.pid) > 0
        assert process.kill_session(leader.pid)
        leader.wait()
        process.end_session(leader.pid, 0)
        assert not process.kill_session(leader.pid)
        assert process.memory_of_session(leader.pid) == 0
    assert not (tmp_path / "ended").exists()


def test_what_a_leader_leaves_may_end_by_itself(tmp_path: Path) -> None:
    with started(tmp_path / "ended") as leader:
        leader.kill()
        leader.wait()
        assert list(process.session_processes(leader.pid))
        assert leader.stdin is not None
        leader.stdin.close()
        process.end_session(leader.pid, 60)
    assert (tmp_path / "ended").exists()


def test_no_process_is_of_no_session() -> None:
    assert list(process.session_processes(0)) == []
