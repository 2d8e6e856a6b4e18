"""Commands that messages name can be pasted: each is one that there is, with options that it has,
and where it takes a table, with the table's location."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pytest
import typer.main
import yaml
from deltalake import write_deltalake

import tandem as package
from cli.invoke import Tandem
from tandem.cli.app import app
from tandem.cli.errors import with_location
from tandem.errors import Reason
from tandem.remedies import HERE, remedy_here

PACKAGE = Path(package.__file__).parent
RUN = "tandem run -f my.yaml"
AGAIN = f"{RUN} --again --only TableUpdate/late"
IN_A_CLUSTER = ("kube", "cli/kubectl", "locks/etcd")


def texts_of_remedies() -> Iterator[tuple[str, str]]:
    """Where a remedy is given, and its text."""
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE).as_posix()
        if place.startswith(IN_A_CLUSTER):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "remedy":
                for part in ast.walk(node.value):
                    if isinstance(part, ast.Constant) and isinstance(part.value, str):
                        yield f"{place}:{part.lineno}", part.value
    for reason in HERE:
        yield f"HERE of {reason}", remedy_here(reason, RUN, AGAIN)


def commands() -> list[tuple[str, str]]:
    found = [
        (place, command)
        for place, text in texts_of_remedies()
        for command in re.findall(r"`(tandem [^`{]+)`", with_location(text, "/data/my table"))
    ]
    assert len(found) > 20
    return found


def require_understood(words: list[str]) -> None:
    """Parse a command as the command line does, without running it."""
    command: Any = typer.main.get_command(app)
    name, parent = "tandem", None
    while hasattr(command, "resolve_command"):
        parent = command.context_class(command, parent=parent, info_name=name)
        name, command, words = command.resolve_command(parent, words)
    command.make_context(name, words, parent=parent)


@pytest.mark.matrix
def test_the_commands_of_remedies_are_understood() -> None:
    """One test: the sources are parsed when it runs, not by each process that collects tests."""
    for place, command in commands():
        words = shlex.split(command)[1:]
        if words in (["dev"], ["scan", "--where"], ["scan"], ["index", "serve"]):
            continue  # these name a way of reading or serving, not what to type
        assert "/data/my table" in words or words[0] == "run" or "--help" in words, place
        try:
            require_understood(words)
        except click.UsageError as error:
            raise AssertionError(f"{place}: {command}: {error.format_message()}") from error


def test_a_remedy_keeps_the_options_of_its_command() -> None:
    text = "Decide: `tandem log resolve --keep` or `tandem log resolve --discard`; see `tandem run`"
    assert with_location(text, "s3://b/t") == (
        "Decide: `tandem log resolve s3://b/t --keep` or `tandem log resolve s3://b/t --discard`; "
        "see `tandem run`"
    )


RESOURCES = """
apiVersion: tandem.dev/v1alpha1
kind: LakeTable
metadata: {{name: t}}
spec: {{location: "{location}"{more}}}
---
apiVersion: tandem.dev/v1alpha1
kind: TableUpdate
metadata: {{name: late}}
spec: {{tableRef: {{name: t}}, delete: {{where: "id = 1"}}}}
---
apiVersion: tandem.dev/v1alpha1
kind: TableCompaction
metadata: {{name: wrong}}
spec: {{tableRef: {{name: t}}, type: Major, layout: {{strategy: Sort, columns: [no]}}}}
"""


@pytest.mark.usefixtures("quick_jobs")
def test_the_remedies_of_a_failed_run_work_when_pasted(tandem: Tandem, tmp_path: Path) -> None:
    """After the file is changed as the message says."""
    folder = tmp_path / "my table"
    write_deltalake(folder, pa.table({"id": [1, 2]}))
    file = tmp_path / "my file.yaml"
    file.write_text(RESOURCES.format(location=folder.as_uri(), more=""))
    failed = tandem("run", "-f", file)
    assert failed.exit_code == 1
    pasted = re.findall(r"`(tandem [^`]+)`", " ".join(failed.stdout.split()))
    vectors = ", enableDeletionVectors: true"
    file.write_text(RESOURCES.format(location=folder.as_uri(), more=vectors))
    for command in dict.fromkeys(pasted):
        ran = tandem(*shlex.split(command)[1:])
        assert ran.exit_code == 0 or "TableCompaction/wrong" in ran.stdout, command
    assert f"tandem table show {shlex.quote(folder.as_uri())}" in pasted
    shown = tandem("scan", folder, "-o", "json").stdout
    assert shown == '{"id":2}\n', "the delete was done"


@pytest.mark.usefixtures("quick_jobs")
def test_the_remedy_of_a_command_works_when_pasted(tandem: Tandem, tmp_path: Path) -> None:
    folder, file = tmp_path / "my table", tmp_path / "my table.yaml"
    write_deltalake(folder, pa.table({"id": [1, 2]}))
    body = {"apiVersion": "tandem.dev/v1alpha1", "kind": "LakeTable", "metadata": {"name": "mine"}}
    spec = {"location": folder.as_uri(), "vectors": "Only"}
    file.write_text(yaml.safe_dump({**body, "spec": spec}))
    failed = tandem("delete", "mine", "-f", file, "--where", "id = 1")
    [command] = re.findall(r"`(tandem [^`]+)`", " ".join(failed.stdout.split()))
    assert tandem(*shlex.split(command)[1:]).exit_code == 0
    assert tandem("scan", folder, "-o", "json").stdout == '{"id":2}\n'


def test_every_reason_of_a_remedy_exists() -> None:
    assert set(HERE) <= set(Reason)
