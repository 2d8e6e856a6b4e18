"""Every command of `docs/coming-from.md` does what the page says, on the table that it makes.

Jobs are done without Spark (`support.jobs.quick_jobs`); all else is as it is.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from deltalake import DeltaTable

from cli.invoke import Tandem

PAGE = Path(__file__).resolve().parents[2] / "docs" / "coming-from.md"


@pytest.fixture
def page(tmp_path: Path, quick_jobs: None) -> str:
    """The page, about a table that its own lines have made."""
    text = PAGE.read_text().replace("/tmp/", f"{tmp_path}/")
    [code] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(code, {})  # noqa: S102
    return text


def test_every_command_of_the_page_works(page: str, tmp_path: Path, tandem: Tandem) -> None:
    commands = re.findall(r"`(tandem [a-z]+ [^`]+)`", page)
    commands = [command for command in commands if str(tmp_path) in command]
    assert len(commands) > 20
    for command in commands:
        result = tandem(*shlex.split(command)[1:])
        assert result.exit_code == 0, f"{command}\n{result.stdout}\n{result.stderr}"
    operations = [entry["operation"] for entry in DeltaTable(tmp_path / "events").history()]
    assert {"OPTIMIZE", "WRITE", "UPDATE", "DELETE", "MERGE"} <= set(operations)


def test_every_command_of_the_page_is_tried(page: str, tmp_path: Path) -> None:
    """Those without a location name a command, and nothing else."""
    for command in re.findall(r"`(tandem [^`]*)`", page):
        bare = re.fullmatch(r"tandem( [a-z]+)?( -f)?", command)
        assert str(tmp_path) in command or bare, command


def test_the_resource_of_the_page_is_maintained(page: str, tmp_path: Path, tandem: Tandem) -> None:
    [resource] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    file = tmp_path / "events.yaml"
    file.write_text(resource)
    [line] = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    words = shlex.split(line.replace("/etc/lake/events.yaml", str(file)))[5:]
    assert words[0] == "tandem"
    result = tandem(*words[1:])
    assert result.exit_code == 0, result.stderr
    assert len(DeltaTable(tmp_path / "events").file_uris()) == 1, "by the schedule"
